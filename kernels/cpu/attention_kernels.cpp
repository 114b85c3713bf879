#include <type_traits>

#include "attention.h"
#include "attention_fill.h"
#include "attention_softmax.h"
#include "attention_tile.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int UNITS = int(SPLIT) / UNIT;
// Positions at most, and bytes of their keys or values, that the register tiles of a tile work through together: they stay in
// the first cache.
constexpr int MOST_POSITIONS = 64, PART_BYTES = 16 << 10;
// Rows up to which converting in registers, once per register tile, is cheaper than through scratch memory.
constexpr int DIRECT_ROWS = MOST_TILE_ROWS;

constexpr int64_t padded(int64_t head_size) {
    return (head_size + UNIT - 1) / UNIT * UNIT;
}

// Positions of a part: whole units, and a split is whole parts.
int positions_of_a_part(int64_t dims) {
    int positions = MOST_POSITIONS;
    while (positions > UNIT && positions * dims * int64_t(sizeof(float)) > PART_BYTES) positions /= 2;
    return positions;
}

struct Scratch {
    float* q;        // [rows][HEAD_STRIDE]
    float* mixed;    // the same, of one split
    float* total;    // the same, of all splits so far
    float* weights;  // [rows][WEIGHT_STRIDE]
    float* part;     // keys or values of MOST_POSITIONS positions
    float* scales;   // of SPLIT keys, then of as many values
};

Scratch divide(float* memory) {
    constexpr int64_t heads = TILE_ROWS * HEAD_STRIDE;
    float* weights = memory + 3 * heads + MARGIN;
    float* scales = weights + TILE_ROWS * WEIGHT_STRIDE;
    return {memory, memory + heads, memory + 2 * heads, weights, scales + 2 * SPLIT, scales};
}

// Dims of keys or values, whichever have more: scratch memory of a part holds one after the other.
int64_t widest(const AttentionShape& shape) {
    return padded(shape.head_size > shape.value_size ? shape.head_size : shape.value_size);
}

int64_t scratch_size(int64_t head_size) {
    return 3 * TILE_ROWS * HEAD_STRIDE + MARGIN + TILE_ROWS * WEIGHT_STRIDE + 2 * SPLIT + MOST_POSITIONS * padded(head_size);
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
        s.begin[row] = within(shape.first_seen(position));
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
    const int units = int(padded(shape.value_size) / UNIT);
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
void split_of_tile(const AttentionShape& shape, const AttentionTile& tile, int64_t split, const Scratch& scratch, Softmax& result) {
    using Item = typename T::Item;
    constexpr bool SCALED = std::is_same_v<T, S8>;
    const Seen s = seen(shape, tile, split);
    const int rows = int(tile.n_rows), begin = s.begin[0], end = s.end[rows - 1];
    const int64_t base = split * SPLIT, dims = padded(shape.value_size);
    const int64_t last_position = tile.first_position + (tile.first_row + rows - 1) / shape.group;
    const bool in_place = shape.direct && (sizeof(Item) == sizeof(float) || rows <= DIRECT_ROWS);

    float *key_scales = scratch.scales, *value_scales = scratch.scales + SPLIT;
    if constexpr (SCALED) {
        fill_scales(shape, tile, shape.cache.k_scales, base, begin, end, key_scales);
        fill_scales(shape, tile, shape.cache.v_scales, base, begin, end, value_scales);
    }
    const auto softmax_rows = [&] {
        for (int row = 0; row < rows; ++row) {
            result.max[row] = LOWEST;
            result.sum[row] = 0.0f;
            if (s.begin[row] >= s.end[row]) continue;
            if constexpr (SCALED) times(scratch.weights + row * WEIGHT_STRIDE, key_scales, s.begin[row], s.end[row]);
            result.max[row] = highest(scratch.weights + row * WEIGHT_STRIDE, s.begin[row], s.end[row], shape.soft_cap * LOG2_E);
        }
        for (int row = 0; row < rows; ++row) {
            if (s.begin[row] >= s.end[row]) continue;
            result.sum[row] = weigh(scratch.weights + row * WEIGHT_STRIDE, s.begin[row], s.end[row], result.max[row]);
            if constexpr (SCALED) times(scratch.weights + row * WEIGHT_STRIDE, value_scales, s.begin[row], s.end[row]);
        }
        for (int row = 0; row < rows; ++row) {
            for (int64_t d = 0; d < dims; d += N) store(scratch.mixed + row * HEAD_STRIDE + d, zero());
        }
    };

    // fn(row, rows, first, last) for parts first .. last of what the tile sees, and the register tiles of each; before it
    // fill(at, first, last), where `at` is the part's first unit's first position.
    const int part = in_place && rows <= MOST_TILE_ROWS ? int(SPLIT) : positions_of_a_part(widest(shape));
    const auto in_parts_of = [&](const auto& fill, const auto& fn) {
        for (int at = begin / part * part; at < end; at += part) {
            const int first = begin > at ? begin : at, last = end < at + part ? end : at + part;
            fill(at, first, last);
            register_tiles(tile, [&](int row, int n) { fn(row, n, first, last); });
        }
    };

    if (in_place) {
        const auto* k = reinterpret_cast<const Item*>(shape.cache.k.data);
        const auto* v = reinterpret_cast<const Item*>(shape.cache.v.data);
        const Item *keys[UNITS + UNITS_AHEAD], *values[UNITS + UNITS_AHEAD];
        const int first_unit = begin / UNIT, last_unit = (end + UNIT - 1) / UNIT;
        for (int unit = first_unit; unit < last_unit; ++unit) {
            keys[unit] = k + place(shape.cache.k, tile, shape.cache.block_size, base + unit * UNIT);
            values[unit] = v + place(shape.cache.v, tile, shape.cache.block_size, base + unit * UNIT);
        }
        for (int i = 0; i < UNITS_AHEAD; ++i) {
            keys[last_unit + i] = values[first_unit + i < last_unit ? first_unit + i : first_unit];
            values[last_unit + i] = values[first_unit];
            const int64_t position = base + SPLIT + i * UNIT;
            if (position <= last_position) {
                values[last_unit + i] = k + place(shape.cache.k, tile, shape.cache.block_size, position);
            }
        }
        const auto nothing = [](int, int, int) {};
        in_parts_of(nothing, [&](int row, int n, int first, int last) {
            score_rows<T>(shape, scratch, s, row, n, keys, shape.cache.k.dim, first, last);
        });
        softmax_rows();
        in_parts_of(nothing, [&](int row, int n, int first, int last) {
            mix_rows<T>(shape, scratch, s, row, n, values, shape.cache.v.token, first, last);
        });
        return;
    }

    const float* units[UNITS + UNITS_AHEAD];
    const auto lay = [&](int at, int64_t unit_size) {
        for (int i = 0; i < part / UNIT + UNITS_AHEAD; ++i) {
            units[at / UNIT + i] = scratch.part + (i * UNIT < part ? i * unit_size : 0);
        }
    };
    in_parts_of(
        [&](int at, int first, int last) {
            lay(at, UNIT * shape.head_size);
            fill_keys<T>(shape, tile, base + at, first - at, last - at, scratch.part);
        },
        [&](int row, int n, int first, int last) { score_rows<F32>(shape, scratch, s, row, n, units, UNIT, first, last); });
    softmax_rows();
    in_parts_of(
        [&](int at, int first, int last) {
            lay(at, UNIT * dims);
            fill_values<T>(shape, tile, base + at, first - at, last - at, dims, scratch.part);
        },
        [&](int row, int n, int first, int last) { mix_rows<F32>(shape, scratch, s, row, n, units, dims, first, last); });
}

void split_of_tile(const AttentionShape& shape, const AttentionTile& tile, int64_t split, const Scratch& scratch, Softmax& result) {
    switch (shape.cache.type) {
        case CacheType::f32: return split_of_tile<F32>(shape, tile, split, scratch, result);
        case CacheType::f16: return split_of_tile<F16>(shape, tile, split, scratch, result);
        case CacheType::bf16: return split_of_tile<BF16>(shape, tile, split, scratch, result);
        case CacheType::s8: return split_of_tile<S8>(shape, tile, split, scratch, result);
        case CacheType::f8: return split_of_tile<F8>(shape, tile, split, scratch, result);
    }
}

// The tile's queries, times what turns scores into powers of two (or, with a soft cap, into the argument of `capped`).
void take_queries(const AttentionShape& shape, const AttentionTile& tile, const Scratch& scratch) {
    const float to_powers = shape.soft_cap > 0.0f ? 2.0f * LOG2_E * shape.scale / shape.soft_cap : LOG2_E * shape.scale;
    const float factor = to_powers * unit(shape.cache.type);
    for (int64_t row = 0; row < tile.n_rows; ++row) {
        const int64_t at = tile.first_row + row;
        const float* from = tile.q + at / shape.group * tile.q_stride + at % shape.group * shape.head_size;
        float* to = scratch.q + row * HEAD_STRIDE;
        int64_t d = 0;
        for (; d + N <= shape.head_size; d += N) store(to + d, mul(load(from + d), set1(factor)));
        for (; d < shape.head_size; ++d) to[d] = from[d] * factor;
    }
}

// What splits leave behind for the rows of a tile, joined in rising order. All paths come through here, so that they round alike.
struct Total {
    Softmax softmax;
    float* mixed;  // [rows][HEAD_STRIDE]
    int rows;
    int64_t dims;

    // A sink is a score whose value is zero, before all splits.
    Total(float* memory, const AttentionShape& shape, const AttentionTile& tile)
        : mixed(memory), rows(int(tile.n_rows)), dims(padded(shape.value_size)) {
        for (int row = 0; row < TILE_ROWS; ++row) softmax.max[row] = LOWEST, softmax.sum[row] = 0.0f;
        for (int row = 0; row < rows && shape.sinks; ++row) {
            softmax.max[row] = shape.sinks[tile.kv_head * shape.group + (tile.first_row + row) % shape.group] * LOG2_E;
            softmax.sum[row] = 1.0f;
        }
        for (int row = 0; row < rows; ++row) {
            for (int64_t d = 0; d < dims; d += N) store(mixed + row * HEAD_STRIDE + d, zero());
        }
    }

    void join(const Softmax& next, const float* next_mixed, int64_t stride) {
        alignas(64) float a[TILE_ROWS], b[TILE_ROWS];
        join_softmax(rows, softmax, next, a, b);
        for (int row = 0; row < rows; ++row) {
            if (next.sum[row] == 0.0f) continue;  // sees none of the split
            float* to = mixed + row * HEAD_STRIDE;
            const float* from = next_mixed + row * stride;
            for (int64_t d = 0; d < dims; d += N) {
                store(to + d, fma(load(from + d), set1(b[row]), mul(load(to + d), set1(a[row]))));
            }
        }
    }
};

void write(const AttentionShape& shape, const AttentionTile& tile, const Total& total) {
    for (int64_t row = 0; row < tile.n_rows; ++row) {
        const int64_t at = tile.first_row + row;
        float* to = tile.out + at / shape.group * tile.out_stride + at % shape.group * shape.value_size;
        const float* mixed = total.mixed + row * HEAD_STRIDE;
        const float inverse = 1.0f / total.softmax.sum[row] * unit(shape.cache.type);
        int64_t d = 0;
        for (; d + N <= shape.value_size; d += N) store(to + d, mul(load(mixed + d), set1(inverse)));
        for (; d < shape.value_size; ++d) to[d] = mixed[d] * inverse;
    }
}

void attend(const AttentionShape& shape, const AttentionTile& tile, float* memory) {
    const Scratch scratch = divide(memory);
    take_queries(shape, tile, scratch);
    Total total(scratch.total, shape, tile);
    Softmax next;
    for (int64_t split = tile.first_split; split < tile.last_split; ++split) {
        split_of_tile(shape, tile, split, scratch, next);
        total.join(next, scratch.mixed, HEAD_STRIDE);
    }
    write(shape, tile, total);
}

// Of the rows' partials in one split, [n_rows][partial_size]: behind the weighted sum come maximum and sum of weights.
void attend_part(const AttentionShape& shape, const AttentionTile& tile, int64_t first, int64_t last, float* partials, float* memory) {
    const Scratch scratch = divide(memory);
    const int64_t dims = padded(shape.value_size);
    take_queries(shape, tile, scratch);
    Softmax result;
    for (int64_t split = first; split < last; ++split) {
        split_of_tile(shape, tile, split, scratch, result);
        for (int64_t row = 0; row < tile.n_rows; ++row, partials += partial_size(shape.value_size)) {
            for (int64_t d = 0; d < dims; d += N) store(partials + d, load(scratch.mixed + row * HEAD_STRIDE + d));
            partials[dims] = result.max[row];
            partials[dims + 1] = result.sum[row];
        }
    }
}

void join(const AttentionShape& shape, const AttentionTile& tile, const float* partials, float* memory) {
    const int64_t dims = padded(shape.value_size), size = partial_size(shape.value_size);
    Total total(divide(memory).total, shape, tile);
    Softmax next;
    for (int64_t split = tile.first_split; split < tile.last_split; ++split, partials += tile.n_rows * size) {
        for (int64_t row = 0; row < tile.n_rows; ++row) {
            next.max[row] = partials[row * size + dims];
            next.sum[row] = partials[row * size + dims + 1];
        }
        total.join(next, partials, size);
    }
    write(shape, tile, total);
}

}  // namespace

const AttentionKernels attention = {scratch_size, attend, attend_part, join};

}  // namespace pagewell::PW_ISA
