#include "attention.h"
#include "attention_fill.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int UNITS = int(SPLIT) / UNIT;
// Positions converted at once: keys and values of 64 dims, 16 KiB each, stay in the first cache.
constexpr int PART = 64;
// Rows up to which converting in registers, once per register tile, is cheaper than through scratch memory.
constexpr int DIRECT_ROWS = MOST_TILE_ROWS;

constexpr int64_t padded(int64_t head_size) {
    return (head_size + UNIT - 1) / UNIT * UNIT;
}

struct Scratch {
    float* q;        // [rows][HEAD_STRIDE]
    float* mixed;    // the same, of one split
    float* total;    // the same, of all splits so far
    float* weights;  // [rows][WEIGHT_STRIDE]
    float* part;     // keys or values of PART positions
};

Scratch divide(float* memory) {
    constexpr int64_t heads = TILE_ROWS * HEAD_STRIDE;
    return {memory, memory + heads, memory + 2 * heads, memory + 3 * heads, memory + 3 * heads + TILE_ROWS * WEIGHT_STRIDE};
}

int64_t scratch_size(int64_t head_size) {
    return 3 * TILE_ROWS * HEAD_STRIDE + TILE_ROWS * WEIGHT_STRIDE + PART * padded(head_size);
}

// What each row of a tile sees of a split: positions begin .. end, relative to the split's first. Both rise with the row.
struct Seen {
    int begin[TILE_ROWS], end[TILE_ROWS];
};

Seen seen(const AttentionShape& shape, const AttentionTile& tile, int64_t split) {
    const auto within = [&](int64_t position) {
        const int64_t x = position - split * SPLIT;
        return int(x < 0 ? 0 : x > SPLIT ? SPLIT : x);
    };
    Seen s;
    for (int64_t row = 0; row < tile.n_rows; ++row) {
        const int64_t position = tile.first_position + (tile.first_row + row) / shape.group;
        s.begin[row] = within(shape.window > 0 ? position - shape.window + 1 : 0);
        s.end[row] = within(position + 1);
    }
    return s;
}

// fn(first row, rows) for the tile's register tiles.
template <typename F>
PW_INLINE void register_tiles(const AttentionTile& tile, const F& fn) {
    const int most = tile.n_rows <= MOST_TILE_ROWS ? MOST_TILE_ROWS : 6;
    in_parts(int(tile.n_rows), most, fn);
}

// Scores of the register tile's rows and the units that any of them sees among begin .. end.
template <typename T>
PW_INLINE void score_rows(const AttentionShape& shape, const Scratch& scratch, const Seen& s, int row, int rows,
                          const typename T::Item* const* keys, int64_t key_stride, int begin, int end) {
    const int from = (s.begin[row] > begin ? s.begin[row] : begin) / UNIT;
    const int last = s.end[row + rows - 1] < end ? s.end[row + rows - 1] : end;
    const int to = (last + UNIT - 1) / UNIT;
    if (from >= to) return;
    score_units<T>(rows, to - from, scratch.q + row * HEAD_STRIDE, keys + from, key_stride, shape.head_size,
                   scratch.weights + row * WEIGHT_STRIDE + from * UNIT);
}

// Values begin .. end into the register tile's rows, each row with what it sees: first what its neighbours below do not see
// any more, then what all see, then what those above do not see yet.
template <typename T>
PW_INLINE void mix_rows(const AttentionShape& shape, const Scratch& scratch, const Seen& s, int row, int rows,
                        const typename T::Item* const* values, int64_t value_stride, int begin, int end) {
    const int units = int(padded(shape.head_size) / UNIT);
    const auto cut = [&](int t) { return t < begin ? begin : t > end ? end : t; };
    const auto some = [&](int r, int n, int first, int last) {
        mix_units<T>(n, units, scratch.weights + r * WEIGHT_STRIDE, values, value_stride, first, last,
                     scratch.mixed + r * HEAD_STRIDE);
    };
    const int from = cut(s.begin[row + rows - 1]), to = cut(s.end[row]);
    const bool shared = from < to;
    for (int r = row; r < row + rows; ++r) some(r, 1, cut(s.begin[r]), shared ? from : cut(s.end[r]));
    if (!shared) return;
    some(row, rows, from, to);
    for (int r = row; r < row + rows; ++r) some(r, 1, to, cut(s.end[r]));
}

// One split's weighted sums to scratch.mixed, its maxima and sums of weights to `result`; a row that sees none of it has the sum 0.
template <typename T>
void split_of_tile(const AttentionShape& shape, const AttentionTile& tile, int64_t split, const Scratch& scratch, Softmax* result) {
    using Item = typename T::Item;
    const Seen s = seen(shape, tile, split);
    const int rows = int(tile.n_rows), begin = s.begin[0], end = s.end[rows - 1];
    const int64_t base = split * SPLIT, dims = padded(shape.head_size);
    const bool in_place = shape.direct && (sizeof(Item) == sizeof(float) || rows <= DIRECT_ROWS);

    const auto softmax_rows = [&] {
        const float cap = shape.soft_cap * LOG2_E;
        for (int row = 0; row < rows; ++row) {
            for (int64_t d = 0; d < dims; d += N) store(scratch.mixed + row * HEAD_STRIDE + d, zero());
            result[row] = {LOWEST, 0.0f};
            if (s.begin[row] < s.end[row]) result[row] = softmax(scratch.weights + row * WEIGHT_STRIDE, s.begin[row], s.end[row], cap);
        }
    };

    if (in_place) {
        const auto* k = reinterpret_cast<const Item*>(shape.cache.k.data);
        const auto* v = reinterpret_cast<const Item*>(shape.cache.v.data);
        const Item *keys[UNITS], *values[UNITS];
        for (int unit = begin / UNIT; unit * UNIT < end; ++unit) {
            keys[unit] = k + place(shape.cache.k, tile, shape.cache.block_size, base + unit * UNIT);
            values[unit] = v + place(shape.cache.v, tile, shape.cache.block_size, base + unit * UNIT);
        }
        register_tiles(tile, [&](int row, int n) { score_rows<T>(shape, scratch, s, row, n, keys, shape.cache.k.dim, begin, end); });
        softmax_rows();
        register_tiles(tile, [&](int row, int n) { mix_rows<T>(shape, scratch, s, row, n, values, shape.cache.v.token, begin, end); });
        return;
    }

    const auto in_turn = [&](int64_t unit_size, const auto& fill, const auto& multiply) {
        for (int at = begin / PART * PART; at < end; at += PART) {
            const int first = begin > at ? begin : at, last = end < at + PART ? end : at + PART;
            fill(at, first - at, last - at);
            const float* units[UNITS];
            for (int unit = 0; unit < PART / UNIT; ++unit) units[at / UNIT + unit] = scratch.part + unit * unit_size;
            register_tiles(tile, [&](int row, int n) { multiply(row, n, units, first, last); });
        }
    };
    in_turn(
        UNIT * shape.head_size,
        [&](int at, int first, int last) { fill_keys<T>(shape, tile, base + at, first, last, scratch.part); },
        [&](int row, int n, const float* const* units, int first, int last) {
            score_rows<F32>(shape, scratch, s, row, n, units, UNIT, first, last);
        });
    softmax_rows();
    in_turn(
        UNIT * dims,
        [&](int at, int first, int last) { fill_values<T>(shape, tile, base + at, first, last, dims, scratch.part); },
        [&](int row, int n, const float* const* units, int first, int last) {
            mix_rows<F32>(shape, scratch, s, row, n, units, dims, first, last);
        });
}

void split_of_tile(const AttentionShape& shape, const AttentionTile& tile, int64_t split, const Scratch& scratch, Softmax* result) {
    switch (shape.cache.type) {
        case Float::f32: return split_of_tile<F32>(shape, tile, split, scratch, result);
        case Float::f16: return split_of_tile<F16>(shape, tile, split, scratch, result);
        case Float::bf16: return split_of_tile<BF16>(shape, tile, split, scratch, result);
    }
}

// The tile's queries, times what turns scores into powers of two (or, with a soft cap, into the argument of `capped`).
void take_queries(const AttentionShape& shape, const AttentionTile& tile, const Scratch& scratch) {
    const float factor = shape.soft_cap > 0.0f ? 2.0f * LOG2_E * shape.scale / shape.soft_cap : LOG2_E * shape.scale;
    for (int64_t row = 0; row < tile.n_rows; ++row) {
        const int64_t at = tile.first_row + row;
        const float* from = tile.q + at / shape.group * tile.q_stride + at % shape.group * shape.head_size;
        float* to = scratch.q + row * HEAD_STRIDE;
        int64_t d = 0;
        for (; d + N <= shape.head_size; d += N) store(to + d, mul(load(from + d), set1(factor)));
        for (; d < shape.head_size; ++d) to[d] = from[d] * factor;
    }
}

// Join the next split's result to that of those before it. Both paths come through here, so that they round alike.
void join_split(Softmax& total, float* total_mixed, const Softmax& next, const float* mixed, int64_t dims) {
    if (next.sum == 0.0f) return;
    if (total.sum == 0.0f) {
        total = next;
        for (int64_t d = 0; d < dims; d += N) store(total_mixed + d, load(mixed + d));
        return;
    }
    const float most = total.max > next.max ? total.max : next.max;
    const float a = exp2(total.max - most), b = exp2(next.max - most);
    total = {most, __builtin_fmaf(next.sum, b, total.sum * a)};
    for (int64_t d = 0; d < dims; d += N) {
        store(total_mixed + d, fma(load(mixed + d), set1(b), mul(load(total_mixed + d), set1(a))));
    }
}

void write_row(const AttentionShape& shape, const AttentionTile& tile, int64_t row, const Softmax& total, const float* mixed) {
    const int64_t at = tile.first_row + row;
    float* to = tile.out + at / shape.group * tile.out_stride + at % shape.group * shape.head_size;
    const float inverse = 1.0f / total.sum;
    int64_t d = 0;
    for (; d + N <= shape.head_size; d += N) store(to + d, mul(load(mixed + d), set1(inverse)));
    for (; d < shape.head_size; ++d) to[d] = mixed[d] * inverse;
}

void attend(const AttentionShape& shape, const AttentionTile& tile, float* memory) {
    const Scratch scratch = divide(memory);
    const int64_t dims = padded(shape.head_size);
    take_queries(shape, tile, scratch);
    Softmax total[TILE_ROWS] = {}, next[TILE_ROWS];
    for (int64_t split = tile.first_split; split < tile.last_split; ++split) {
        split_of_tile(shape, tile, split, scratch, next);
        for (int64_t row = 0; row < tile.n_rows; ++row) {
            join_split(total[row], scratch.total + row * HEAD_STRIDE, next[row], scratch.mixed + row * HEAD_STRIDE, dims);
        }
    }
    for (int64_t row = 0; row < tile.n_rows; ++row) write_row(shape, tile, row, total[row], scratch.total + row * HEAD_STRIDE);
}

void attend_part(const AttentionShape& shape, const AttentionTile& tile, int64_t first, int64_t last, float* partials, float* memory) {
    const Scratch scratch = divide(memory);
    const int64_t dims = padded(shape.head_size);
    take_queries(shape, tile, scratch);
    Softmax result[TILE_ROWS];
    for (int64_t split = first; split < last; ++split) {
        split_of_tile(shape, tile, split, scratch, result);
        for (int64_t row = 0; row < tile.n_rows; ++row, partials += partial_size(shape.head_size)) {
            for (int64_t d = 0; d < dims; d += N) store(partials + d, load(scratch.mixed + row * HEAD_STRIDE + d));
            partials[dims] = result[row].max;
            partials[dims + 1] = result[row].sum;
        }
    }
}

void join(const AttentionShape& shape, const AttentionTile& tile, const float* partials, float* memory) {
    const Scratch scratch = divide(memory);
    const int64_t dims = padded(shape.head_size), size = partial_size(shape.head_size);
    for (int64_t row = 0; row < tile.n_rows; ++row) {
        Softmax total = {};
        for (int64_t split = 0; split < tile.last_split - tile.first_split; ++split) {
            const float* partial = partials + (split * tile.n_rows + row) * size;
            join_split(total, scratch.total, {partial[dims], partial[dims + 1]}, partial, dims);
        }
        write_row(shape, tile, row, total, scratch.total);
    }
}

}  // namespace

const AttentionKernels attention = {scratch_size, attend, attend_part, join};

}  // namespace pagewell::PW_ISA
