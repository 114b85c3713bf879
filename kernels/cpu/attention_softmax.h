// Weights of one split from its scores, in base 2: q was multiplied by log2(e) beforehand.
#pragma once

#include "attention_tile.h"

namespace pagewell::PW_ISA {
namespace {

constexpr float LOG2_E = 1.44269504f;

// 2^x within 2 ulp for x in -126 .. 126, where it is cut; NaN stays NaN. Polynomial: least relative error of degree 5 on
// -1/2 .. 1/2 with 1 at 0.
PW_INLINE f32v exp2(f32v x) {
    x = min(set1(126.0f), max(set1(-126.0f), x));
    const f32v k = round(x), f = sub(x, k);
    f32v p = set1(1.326472614891827e-3f);
    p = fma(p, f, set1(9.671512991189957e-3f));
    p = fma(p, f, set1(5.550733581185341e-2f));
    p = fma(p, f, set1(2.4022242426872253e-1f));
    p = fma(p, f, set1(6.931470036506653e-1f));
    p = fma(p, f, set1(1.0f));
#if defined(__AVX512F__)
    return {_mm512_scalef_ps(p.v, k.v)};
#elif defined(__AVX2__)
    const __m256i bits = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(k.v), _mm256_set1_epi32(127)), 23);
    return {_mm256_mul_ps(p.v, _mm256_castsi256_ps(bits))};
#else
    return {vmulq_f32(p.v, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(k.v), vdupq_n_s32(127)), 23)))};
#endif
}

PW_INLINE float exp2(float x) {
    float values[N];
    store(values, exp2(set1(x)));
    return values[0];
}

constexpr float LOWEST = -__builtin_inff();

// c * tanh(x / c) of scores that hold x * 2 * log2(e) / c, times log2(e).
PW_INLINE f32v capped(f32v score, f32v cap) {
    const f32v e = exp2(score);
    return mul(cap, sub(set1(1.0f), div(set1(2.0f), add(e, set1(1.0f)))));
}

struct Softmax {
    float max, sum;
};

// scores begin .. end of one row to weights 2^(score - max), in place; what shares a vector with them is overwritten.
// cap: 0, or the soft cap times log2(e).
PW_INLINE Softmax softmax(float* scores, int begin, int end, float cap) {
    const int from = begin / N * N, to = (end + N - 1) / N * N;
    if (cap != 0.0f) {
        for (int i = from; i < to; i += N) store(scores + i, capped(load(scores + i), set1(cap)));
    }
    for (int i = from; i < begin; ++i) scores[i] = LOWEST;
    for (int i = end; i < to; ++i) scores[i] = LOWEST;
    f32v most = set1(LOWEST);
    for (int i = from; i < to; i += N) most = max(most, load(scores + i));
    const float m = reduce_max(most);
    // Partial sums by absolute place, so that their order does not depend on where the row's part begins.
    f32v sums[2] = {zero(), zero()};
    for (int i = from; i < to; i += N) {
        const f32v p = exp2(sub(load(scores + i), set1(m)));
        store(scores + i, p);
        f32v& sum = sums[i / N & 1];
        sum = add(sum, p);
    }
    return {m, reduce_add(add(sums[0], sums[1]))};
}

}  // namespace
}  // namespace pagewell::PW_ISA
