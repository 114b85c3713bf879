// Keys and values of up to 64 positions as float32 in scratch memory, from a cache of any type, strides and block size; and the
// scales of a split's positions.
#pragma once

#include "attention.h"
#include "attention_tile.h"

namespace pagewell::PW_ISA {
namespace {

// Where a position's vector begins, in elements.
PW_INLINE int64_t place(const Plane& plane, const AttentionTile& tile, int64_t block_size, int64_t position) {
    const int64_t block = tile.table[position / block_size];
    return block * plane.block + position % block_size * plane.token + tile.kv_head * plane.head;
}

// n items `step` apart to floats; whole vectors are written, zeros past n.
template <typename T>
PW_INLINE void convert(const typename T::Item* from, int64_t step, int64_t n, float* to) {
    int64_t i = 0;
    if (step == 1) {
        for (; i + N <= n; i += N) store(to + i, T::get(from + i));
    }
    for (; i < n; i += N) {
        typename T::Item items[N] = {};
        for (int64_t j = 0; j < N && i + j < n; ++j) items[j] = from[(i + j) * step];
        store(to + i, T::get(items));
    }
}

// Keys of positions base + begin .. base + end to units [dims][16]; `to` is the unit at base.
template <typename T>
void fill_keys(const AttentionShape& shape, const AttentionTile& tile, int64_t base, int begin, int end, float* to) {
    const auto* data = reinterpret_cast<const typename T::Item*>(shape.cache.k.data);
    const Plane& k = shape.cache.k;
    const bool by_dims = k.token == 1 && shape.cache.block_size % UNIT == 0;
    for (int unit = begin / UNIT; unit * UNIT < end; ++unit) {
        float* rows = to + unit * UNIT * shape.head_size;
        if (by_dims) {
            const auto* from = data + place(k, tile, shape.cache.block_size, base + unit * UNIT);
            for (int64_t dim = 0; dim < shape.head_size; ++dim, from += k.dim) convert<T>(from, 1, UNIT, rows + dim * UNIT);
            continue;
        }
        const int first = begin > unit * UNIT ? begin : unit * UNIT, last = end < (unit + 1) * UNIT ? end : (unit + 1) * UNIT;
        for (int t = first; t < last; ++t) {
            const auto* from = data + place(k, tile, shape.cache.block_size, base + t);
            alignas(64) float key[MOST_HEAD_SIZE + UNIT];
            convert<T>(from, k.dim, shape.head_size, key);
            for (int64_t dim = 0; dim < shape.head_size; ++dim) rows[dim * UNIT + t % UNIT] = key[dim];
        }
    }
}

// Values of the same positions to rows of `stride` floats; `to` is the row at base.
template <typename T>
void fill_values(const AttentionShape& shape, const AttentionTile& tile, int64_t base, int begin, int end, int64_t stride, float* to) {
    const auto* data = reinterpret_cast<const typename T::Item*>(shape.cache.v.data);
    for (int t = begin; t < end; ++t) {
        const auto* from = data + place(shape.cache.v, tile, shape.cache.block_size, base + t);
        convert<T>(from, shape.cache.v.dim, shape.value_size, to + t * stride);
    }
}

// Scales of positions base + begin .. base + end; `to` is the one at base. Others of their units may be written too.
void fill_scales(const AttentionShape& shape, const AttentionTile& tile, const Plane& scales, int64_t base, int begin, int end, float* to) {
    const auto* data = reinterpret_cast<const float*>(scales.data);
    const auto from = [&](int t) { return data + place(scales, tile, shape.cache.block_size, base + t); };
    if (scales.token == 1 && shape.cache.block_size % UNIT == 0) {
        for (int t = begin / UNIT * UNIT; t < end; t += UNIT) __builtin_memcpy(to + t, from(t), UNIT * sizeof(float));
    } else {
        for (int t = begin; t < end; ++t) to[t] = *from(t);
    }
}

}  // namespace
}  // namespace pagewell::PW_ISA
