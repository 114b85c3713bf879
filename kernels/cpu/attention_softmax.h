// Weights of one split from its scores, in base 2: q was multiplied by log2(e) beforehand.
#pragma once

#include "attention.h"
#include "attention_tile.h"

namespace pagewell::PW_ISA {
namespace {

constexpr float LOG2_E = 1.44269504f;

// 2^x within 2 ulp for x from -126 to 126; below, at most 2^-126. NaN stays NaN. Polynomial: least relative error of degree 5 on
// -1/2 .. 1/2 with 1 at 0.
PW_INLINE f32v exp2(f32v x) {
#if defined(__AVX512F__)
    // For -infinity f is NaN, but 2^-infinity times any NaN is 0 (table of VSCALEFPS in the Intel SDM).
    const f32v k = round(x), f = sub(x, k);
#else
    // Adding 1.5 * 2^23 rounds, and leaves the whole number in the lowest bits.
    x = max(set1(-126.0f), x);
    const f32v magic = set1(12582912.0f), rounded = add(x, magic), f = sub(x, sub(rounded, magic));
#endif
    f32v p = set1(1.326472614891827e-3f);
    p = fma(p, f, set1(9.671512991189957e-3f));
    p = fma(p, f, set1(5.550733581185341e-2f));
    p = fma(p, f, set1(2.4022242426872253e-1f));
    p = fma(p, f, set1(6.931470036506653e-1f));
    p = fma(p, f, set1(1.0f));
#if defined(__AVX512F__)
    return {_mm512_scalef_ps(p.v, k.v)};
#elif defined(__AVX2__)
    const __m256i bits = _mm256_add_epi32(_mm256_slli_epi32(_mm256_castps_si256(rounded.v), 23), _mm256_set1_epi32(127 << 23));
    return {_mm256_mul_ps(p.v, _mm256_castsi256_ps(bits))};
#else
    const int32x4_t bits = vaddq_s32(vshlq_n_s32(vreinterpretq_s32_f32(rounded.v), 23), vdupq_n_s32(127 << 23));
    return {vmulq_f32(p.v, vreinterpretq_f32_s32(bits))};
#endif
}

// Less than any score, and finite: its difference from one is no NaN.
constexpr float LOWEST = -1e30f;

// c * tanh(x / c) of scores that hold x * 2 * log2(e) / c, times log2(e).
PW_INLINE f32v capped(f32v score, f32v cap) {
    const f32v e = exp2(min(set1(126.0f), score));
    return mul(cap, sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f)))));
}

// Maximum and sum of weights of each row.
struct Softmax {
    alignas(64) float max[TILE_ROWS];
    alignas(64) float sum[TILE_ROWS];
};

// Vectors are taken two by two, from a place that does not depend on where the row's part begins: so does the order of sums.
constexpr int PAIR = 2 * N;
static_assert(MARGIN >= PAIR);

// values begin .. end of one row times the scales of their positions; others in the same vectors become anything.
PW_INLINE void times(float* values, const float* scales, int begin, int end) {
    for (int i = begin / N * N; i < end; i += N) store(values + i, mul(load(values + i), load(scales + i)));
}

// Maximum of scores begin .. end of one row. Those beside them in the same pair of vectors become LOWEST.
// cap: 0, or the soft cap times log2(e), which is applied.
PW_INLINE float highest(float* scores, int begin, int end, float cap) {
    const int from = begin / PAIR * PAIR, to = (end + PAIR - 1) / PAIR * PAIR;
    if (cap != 0.0f) {
        for (int i = from; i < to; i += N) store(scores + i, capped(load(scores + i), set1(cap)));
    }
    if (begin > from) {
        store(scores + begin - N, set1(LOWEST));
        store(scores + begin - PAIR, set1(LOWEST));
    }
    if (end < to) {
        store(scores + end, set1(LOWEST));
        store(scores + end + N, set1(LOWEST));
    }
    f32v a = set1(LOWEST), b = a;
    for (int i = from; i < to; i += PAIR) {
        a = max(a, load(scores + i));
        b = max(b, load(scores + i + N));
    }
    return reduce_max(max(a, b));
}

// scores begin .. end of one row to weights 2^(score - most), in place, after `highest`; returns their sum.
PW_INLINE float weigh(float* scores, int begin, int end, float most) {
    const int from = begin / PAIR * PAIR, to = (end + PAIR - 1) / PAIR * PAIR;
    f32v a = zero(), b = zero();
    for (int i = from; i < to; i += PAIR) {
        const f32v x = exp2(sub(load(scores + i), set1(most))), y = exp2(sub(load(scores + i + N), set1(most)));
        store(scores + i, x);
        store(scores + i + N, y);
        a = add(a, x);
        b = add(b, y);
    }
    return reduce_add(add(a, b));
}

// The factors that bring `total`, of the splits so far, and `next` to a common maximum, for all rows at once; total becomes
// that of both.
PW_INLINE void join_softmax(int rows, Softmax& total, const Softmax& next, float* total_factor, float* next_factor) {
    for (int row = 0; row < rows; row += N) {
        const f32v before = load(total.max + row), after = load(next.max + row), most = max(before, after);
        const f32v a = exp2(sub(before, most)), b = exp2(sub(after, most));
        store(total_factor + row, a);
        store(next_factor + row, b);
        store(total.max + row, most);
        store(total.sum + row, fma(load(next.sum + row), b, mul(load(total.sum + row), a)));
    }
}

}  // namespace
}  // namespace pagewell::PW_ISA
