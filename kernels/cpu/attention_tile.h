// The two products of attention in register tiles: C[r][n] (+)= sum over k of A[r][k] B[k][n], k rising, one fma each.
// For scores A is q, B the keys and k the dims; for the mix A is the weights, B the values and k the positions.
#pragma once

#include "cache.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int N = f32v::N;
// Tokens, or dims, are taken in units of 16.
constexpr int UNIT = 16;
constexpr int V = UNIT / N;
// Distances between rows of scratch memory, known to the compiler; 64 bytes past a power of two, so that rows at one column
// do not all fall into the same cache sets. Behind each row of weights is room for what vectors write past its end or before
// the next one's beginning.
constexpr int64_t HEAD_STRIDE = MOST_HEAD_SIZE + 16;
constexpr int64_t MARGIN = 32;
constexpr int64_t WEIGHT_STRIDE = 256 + MARGIN;

struct F32 {
    using Item = float;
    static PW_INLINE f32v get(const Item* p) { return load(p); }
};
struct F16 {
    using Item = uint16_t;
    static PW_INLINE f32v get(const Item* p) { return load_f16(p); }
};
struct BF16 {
    using Item = uint16_t;
    static PW_INLINE f32v get(const Item* p) { return load_bf16(p); }
};
// FP8_UNIT times too small: queries and results make up for it.
struct F8 {
    using Item = uint8_t;
    static PW_INLINE f32v get(const Item* p) { return load_f8(p); }
};
PW_INLINE float unit(CacheType type) { return type == CacheType::f8 ? FP8_UNIT : 1.0f; }
// Without its scales: they belong to positions, so that scores and weights take them up.
struct S8 {
    using Item = int8_t;
    static PW_INLINE f32v get(const Item* p) { return load_s8(p); }
};

#if defined(__AVX512F__)
constexpr int MOST_REGISTERS = 32, MOST_TILE_ROWS = 8;
#elif defined(__AVX2__)
constexpr int MOST_REGISTERS = 16, MOST_TILE_ROWS = 6;
#else
constexpr int MOST_REGISTERS = 32, MOST_TILE_ROWS = 6;
#endif

// Units of a tile of R rows: R * units * V sums, and beside them either a row of B and one value of A, or R values of A
// and one vector of B.
template <int R>
constexpr int most_units() {
    int units = 1;
    for (int c = 2; c <= 4; ++c) {
        const int wide = c * V, beside = (wide < R ? wide : R) + 1;
        if (R * wide + beside <= MOST_REGISTERS) units = c;
    }
    return units;
}

// Keeps x in a register: gcc would rather load it anew for each product, and then loads are what limits.
PW_INLINE void hold([[maybe_unused]] f32v& x) {
#if defined(__AVX512F__)
    asm("" : "+v"(x.v));
#elif defined(__AVX2__)
    asm("" : "+x"(x.v));
#endif
}

// One step of k: sums[r][j] += a(r) * b(j)
template <int R, int J, typename A, typename B>
PW_INLINE void step(f32v (&sums)[R][J], const A& a, const B& b) {
    if constexpr (R < J) {
        f32v x[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) x[r] = a(r);
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
            f32v y = b(j);
            hold(y);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) sums[r][j] = fma(x[r], y, sums[r][j]);
        }
    } else {
        f32v y[J];
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) y[j] = b(j);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
            const f32v x = a(r);
#pragma GCC unroll 16
            for (int j = 0; j < J; ++j) sums[r][j] = fma(x, y[j], sums[r][j]);
        }
    }
}

// Rows of 16 items that share a cache line.
template <typename T>
constexpr int ROWS_OF_A_LINE = 64 / (UNIT * int(sizeof(typename T::Item)));
// Units of values that are asked for ahead of their use.
constexpr int AHEAD = 2;
// Entries that arrays of units must have past those in use: what is asked for ahead.
constexpr int UNITS_AHEAD = 4;

// q [R][HEAD_STRIDE], keys of C units, each [dims][16] with rows key_stride apart -> scores [R][WEIGHT_STRIDE], 16 per unit.
// The C units that come after them in `keys` are prefetched.
template <typename T, int R, int C>
void score(const float* q, const typename T::Item* const* keys, int64_t key_stride, int64_t dims, float* scores) {
    f32v sums[R][C * V];
    const typename T::Item *at[C], *next[C];
    for (int c = 0; c < C; ++c) at[c] = keys[c], next[c] = keys[C + c];
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < C * V; ++j) sums[r][j] = zero();
    }
    int64_t dim = 0, offset = 0;
    const auto one = [&](int i) {
        step(sums, [&](int r) { return set1(q[r * HEAD_STRIDE + dim + i]); },
             [&](int j) { return T::get(at[j / V] + offset + j % V * N); });
        if (i % ROWS_OF_A_LINE<T> == 0) {
            for (int c = 0; c < C; ++c) __builtin_prefetch(next[c] + offset);
        }
        offset += key_stride;
    };
    for (; dim + 4 <= dims; dim += 4) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) one(i);
    }
    for (; dim < dims; ++dim) one(0);
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < C * V; ++j) store(scores + r * WEIGHT_STRIDE + j * N, sums[r][j]);
    }
}

// weights [R][WEIGHT_STRIDE], values by units of 16 positions, each [16][dims] with rows value_stride apart; positions
// first .. last and C units of dims from `dim` on are added to out [R][HEAD_STRIDE]. Units that come AHEAD are prefetched.
template <typename T, int R, int C>
void mix(const float* weights, const typename T::Item* const* values, int64_t value_stride, int first, int last, int dim, float* out) {
    f32v sums[R][C * V];
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < C * V; ++j) sums[r][j] = load(out + r * HEAD_STRIDE + dim + j * N);
    }
    for (int t = first; t < last;) {
        const typename T::Item* row = values[t / UNIT] + t % UNIT * value_stride + dim;
        const typename T::Item* next = values[t / UNIT + AHEAD] + t % UNIT * value_stride + dim;
        const int end = (t / UNIT + 1) * UNIT < last ? (t / UNIT + 1) * UNIT : last;
        for (; t < end; ++t, row += value_stride, next += value_stride) {
            step(sums, [&](int r) { return set1(weights[r * WEIGHT_STRIDE + t]); }, [&](int j) { return T::get(row + j * N); });
            for (int c = 0; c < C; c += ROWS_OF_A_LINE<T>) __builtin_prefetch(next + c * UNIT);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int j = 0; j < C * V; ++j) store(out + r * HEAD_STRIDE + dim + j * N, sums[r][j]);
    }
}

// fn(begin, count) over 0 .. n in nearly equal parts of at most `most`.
template <typename F>
PW_INLINE void in_parts(int n, int most, const F& fn) {
    int n_parts = (n + most - 1) / most;
    for (int begin = 0; n_parts > 0; --n_parts) {
        const int count = (n - begin + n_parts - 1) / n_parts;
        fn(begin, count);
        begin += count;
    }
}

// fn.template operator()<n>() for a run-time n in 1 .. most.
template <int MOST, typename F>
PW_INLINE void with_constant(int n, const F& fn) {
    if constexpr (MOST > 1) {
        if (n < MOST) return with_constant<MOST - 1>(n, fn);
    }
    fn.template operator()<MOST>();
}

// score for any numbers of rows (up to MOST_TILE_ROWS) and units.
template <typename T>
void score_units(int rows, int units, const float* q, const typename T::Item* const* keys, int64_t key_stride, int64_t dims, float* scores) {
    with_constant<MOST_TILE_ROWS>(rows, [&]<int R>() {
        in_parts(units, most_units<R>(), [&](int begin, int count) {
            with_constant<most_units<R>()>(count, [&]<int C>() {
                score<T, R, C>(q, keys + begin, key_stride, dims, scores + begin * UNIT);
            });
        });
    });
}

// mix for any numbers of rows (up to MOST_TILE_ROWS) and units of dims.
template <typename T>
void mix_units(int rows, int units, const float* weights, const typename T::Item* const* values, int64_t value_stride, int first, int last,
               float* out) {
    if (first >= last) return;
    with_constant<MOST_TILE_ROWS>(rows, [&]<int R>() {
        in_parts(units, most_units<R>(), [&](int begin, int count) {
            with_constant<most_units<R>()>(count, [&]<int C>() {
                mix<T, R, C>(weights, values, value_stride, first, last, begin * UNIT, out);
            });
        });
    });
}

}  // namespace
}  // namespace pagewell::PW_ISA
