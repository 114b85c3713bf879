// Attention over the paged cache, in tiles: rows of queries that share one KV head, over splits of the sequence.
//
// Every query row's result is made in one order, whatever shares its tile or its batch: scores are sums over the dims in
// rising order; within each split (SPLIT positions, at multiples of SPLIT) there is one maximum, and the weighted sum of the
// values runs over rising positions; the splits' results are joined in rising order. Positions that a row does not see
// take no part in it at all, so that nothing that lies there can reach the row.
#pragma once

#include <cstdint>

#include "cache.h"
#include "isa.h"

namespace pagewell {

inline constexpr int64_t SPLIT = 256;
// Rows of a tile at most; a multiple of the six that a register tile has.
inline constexpr int64_t TILE_ROWS = 48;

struct AttentionShape {
    Cache cache;
    int64_t head_size;   // of queries and keys
    int64_t value_size;  // of values and results
    int64_t group;  // query heads of one KV head
    int64_t window;  // 0: none
    float scale, soft_cap;
    bool direct;  // K lies as [D][tokens], V as [tokens][D], 16 tokens at a time: read in place
    const float* sinks = nullptr;  // [query heads]; null: none
    bool chunked = false;  // a query sees back to the last multiple of the window, and not all of the window

    // The first position that a query sees.
    PW_INLINE int64_t first_seen(int64_t position) const {
        if (window == 0) return 0;
        const int64_t from = chunked ? position / window * window : position - window + 1;
        return from > 0 ? from : 0;
    }
};

// Rows of a tile are pairs (position, head of the group), positions first; row 0 is head 0 at the sequence's first query.
struct AttentionTile {
    const float* q;  // row 0
    float* out;      // row 0
    int64_t q_stride, out_stride;  // between positions
    const int32_t* table;
    int64_t kv_head;
    int64_t first_position;  // of row 0
    int64_t first_row, n_rows;
    int64_t first_split, last_split;
};

// Floats that one split of one row leaves behind: the weighted sum, the maximum, the sum of weights.
PW_INLINE constexpr int64_t partial_size(int64_t value_size) {
    return (value_size + 15) / 16 * 16 + 16;
}

struct AttentionKernels {
    // Floats of scratch memory, 64-byte aligned, that each call needs; head_size: of keys or values, whichever is larger.
    int64_t (*scratch_size)(int64_t head_size);
    // The tile's result to tile.out. It has all splits that its rows see.
    void (*attend)(const AttentionShape& shape, const AttentionTile& tile, float* scratch);
    // Splits first .. last of the tile to partials [last - first][n_rows][partial_size].
    void (*attend_part)(const AttentionShape& shape, const AttentionTile& tile, int64_t first, int64_t last, float* partials,
                        float* scratch);
    // What attend would have written, from the partials of all its splits.
    void (*join)(const AttentionShape& shape, const AttentionTile& tile, const float* partials, float* scratch);
};

PAGEWELL_TABLES(AttentionKernels, attention)

}  // namespace pagewell
