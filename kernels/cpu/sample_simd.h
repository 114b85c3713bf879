// Comparisons, packing and exact sums by one set of names per instruction-set level, as in simd.h.
#pragma once

#include "sample.h"
#include "simd.h"

#define PW_SETTLE() asm volatile("" ::: "memory")

namespace pagewell::PW_ISA {

// The bits of 512.0.
inline constexpr uint64_t BASE_BITS = uint64_t{0x4080000000000000};

#if defined(__AVX512F__)

struct maskv {
    __mmask16 v;
};
PW_INLINE maskv ge(f32v a, f32v b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ)}; }
PW_INLINE maskv gt(f32v a, f32v b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
PW_INLINE maskv eq(f32v a, f32v b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
PW_INLINE maskv unordered(f32v a, f32v b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q)}; }
PW_INLINE maskv either(maskv a, maskv b) { return {__mmask16(a.v | b.v)}; }
PW_INLINE maskv but_not(maskv a, maskv b) { return {__mmask16(a.v & ~b.v)}; }
PW_INLINE uint32_t bits(maskv m) { return m.v; }
PW_INLINE f32v keep(maskv m, f32v x) { return {_mm512_maskz_mov_ps(m.v, x.v)}; }
PW_INLINE void pack(float* p, maskv m, f32v x) { _mm512_storeu_ps(p, _mm512_maskz_compress_ps(m.v, x.v)); }

// x * 2^k, where the low bits of the float `k` hold the whole number k
PW_INLINE f32v times_power(f32v x, f32v k) {
    return {_mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x.v), _mm512_slli_epi32(_mm512_castps_si512(k.v), 23)))};
}

// Exact sum of weights. A double between 512 and 1024 counts units of 2^-43 in its low bits: adding 512 rounds a weight to
// whole units. The bits of the 512s are taken off at the end.
struct Units {
    __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();
    uint64_t n = 0;

    // From memory: a conversion that loads its operand leaves the shuffle port free. Compilers know better unless PW_SETTLE
    // stands between store and load.
    PW_INLINE void add(const float* w, maskv m) {
        const __m512d base = _mm512_set1_pd(512.0);
        const __m512d a = _mm512_maskz_cvtps_pd(__mmask8(m.v), _mm256_loadu_ps(w));
        const __m512d b = _mm512_maskz_cvtps_pd(__mmask8(m.v >> 8), _mm256_loadu_ps(w + 8));
        add(_mm512_add_pd(a, base), _mm512_add_pd(b, base));
    }
    PW_INLINE void add(const float* w) {
        const __m512d base = _mm512_set1_pd(512.0);
        const __m512d a = _mm512_cvtps_pd(_mm256_loadu_ps(w)), b = _mm512_cvtps_pd(_mm256_loadu_ps(w + 8));
        add(_mm512_add_pd(a, base), _mm512_add_pd(b, base));
    }
    PW_INLINE void add(__m512d a, __m512d b) {
        low = _mm512_add_epi64(low, _mm512_castpd_si512(a));
        high = _mm512_add_epi64(high, _mm512_castpd_si512(b));
        n += 16;
    }
    PW_INLINE uint64_t total() const {
        // Not _mm512_reduce_add_epi64, which adds as signed numbers: these sums wrap.
        uint64_t lanes[8], sum = 0;
        _mm512_storeu_si512(lanes, _mm512_add_epi64(low, high));
        for (const uint64_t lane : lanes) sum += lane;
        return sum - n * BASE_BITS;
    }
};

#elif defined(__AVX2__)

struct maskv {
    __m256 v;
};
PW_INLINE maskv ge(f32v a, f32v b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GE_OQ)}; }
PW_INLINE maskv gt(f32v a, f32v b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
PW_INLINE maskv eq(f32v a, f32v b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
PW_INLINE maskv unordered(f32v a, f32v b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_UNORD_Q)}; }
PW_INLINE maskv either(maskv a, maskv b) { return {_mm256_or_ps(a.v, b.v)}; }
PW_INLINE maskv but_not(maskv a, maskv b) { return {_mm256_andnot_ps(b.v, a.v)}; }
PW_INLINE uint32_t bits(maskv m) { return uint32_t(_mm256_movemask_ps(m.v)); }
PW_INLINE f32v keep(maskv m, f32v x) { return {_mm256_and_ps(m.v, x.v)}; }

// For each set of lanes, the lanes in order, one per byte.
struct LaneTable {
    uint64_t lanes[256];
    constexpr LaneTable() : lanes() {
        for (int set = 0; set < 256; ++set) {
            int n = 0;
            for (uint64_t lane = 0; lane < 8; ++lane) {
                if (set >> lane & 1) lanes[set] |= lane << (8 * n++);
            }
        }
    }
};
inline constexpr LaneTable LANES;

PW_INLINE void pack(float* p, maskv m, f32v x) {
    const __m256i order = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(int64_t(LANES.lanes[bits(m)])));
    _mm256_storeu_ps(p, _mm256_permutevar8x32_ps(x.v, order));
}

PW_INLINE f32v times_power(f32v x, f32v k) {
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x.v), _mm256_slli_epi32(_mm256_castps_si256(k.v), 23)))};
}

struct Units {
    __m256i low = _mm256_setzero_si256(), high = _mm256_setzero_si256();
    uint64_t n = 0;

    PW_INLINE void add(const float* w, maskv m) {
        const __m256 kept = _mm256_and_ps(m.v, _mm256_loadu_ps(w));
        add(_mm256_cvtps_pd(_mm256_castps256_ps128(kept)), _mm256_cvtps_pd(_mm256_extractf128_ps(kept, 1)));
    }
    PW_INLINE void add(const float* w) { add(_mm256_cvtps_pd(_mm_loadu_ps(w)), _mm256_cvtps_pd(_mm_loadu_ps(w + 4))); }
    PW_INLINE void add(__m256d a, __m256d b) {
        const __m256d base = _mm256_set1_pd(512.0);
        low = _mm256_add_epi64(low, _mm256_castpd_si256(_mm256_add_pd(a, base)));
        high = _mm256_add_epi64(high, _mm256_castpd_si256(_mm256_add_pd(b, base)));
        n += 8;
    }
    PW_INLINE uint64_t total() const {
        const __m256i both = _mm256_add_epi64(low, high);
        const __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(both), _mm256_extracti128_si256(both, 1));
        return uint64_t(_mm_extract_epi64(pair, 0)) + uint64_t(_mm_extract_epi64(pair, 1)) - n * BASE_BITS;
    }
};

#elif defined(__aarch64__)

struct maskv {
    uint32x4_t v;
};
PW_INLINE maskv ge(f32v a, f32v b) { return {vcgeq_f32(a.v, b.v)}; }
PW_INLINE maskv gt(f32v a, f32v b) { return {vcgtq_f32(a.v, b.v)}; }
PW_INLINE maskv eq(f32v a, f32v b) { return {vceqq_f32(a.v, b.v)}; }
PW_INLINE maskv unordered(f32v a, f32v b) { return {vmvnq_u32(vandq_u32(vceqq_f32(a.v, a.v), vceqq_f32(b.v, b.v)))}; }
PW_INLINE maskv either(maskv a, maskv b) { return {vorrq_u32(a.v, b.v)}; }
PW_INLINE maskv but_not(maskv a, maskv b) { return {vbicq_u32(a.v, b.v)}; }
PW_INLINE uint32_t bits(maskv m) {
    const uint32_t place[4] = {1, 2, 4, 8};
    return vaddvq_u32(vandq_u32(m.v, vld1q_u32(place)));
}
PW_INLINE f32v keep(maskv m, f32v x) { return {vreinterpretq_f32_u32(vandq_u32(m.v, vreinterpretq_u32_f32(x.v)))}; }
PW_INLINE void pack(float* p, maskv m, f32v x) {
    float values[4];
    vst1q_f32(values, x.v);
    for (uint32_t rest = bits(m); rest; rest &= rest - 1) *p++ = values[__builtin_ctz(rest)];
}

PW_INLINE f32v times_power(f32v x, f32v k) {
    return {vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.v), vshlq_n_s32(vreinterpretq_s32_f32(k.v), 23)))};
}

struct Units {
    uint64x2_t low = vdupq_n_u64(0), high = vdupq_n_u64(0);
    uint64_t n = 0;

    PW_INLINE void add(const float* w, maskv m) { add_kept(keep(m, {vld1q_f32(w)}).v); }
    PW_INLINE void add(const float* w) { add_kept(vld1q_f32(w)); }
    PW_INLINE void add_kept(float32x4_t w) {
        const float64x2_t base = vdupq_n_f64(512.0);
        const float64x2_t a = vcvt_f64_f32(vget_low_f32(w)), b = vcvt_high_f64_f32(w);
        low = vaddq_u64(low, vreinterpretq_u64_f64(vaddq_f64(a, base)));
        high = vaddq_u64(high, vreinterpretq_u64_f64(vaddq_f64(b, base)));
        n += 4;
    }
    PW_INLINE uint64_t total() const { return vaddvq_u64(vaddq_u64(low, high)) - n * BASE_BITS; }
};

#endif

PW_INLINE bool any(maskv m) {
    return bits(m) != 0;
}

PW_INLINE int count(maskv m) {
    return __builtin_popcount(bits(m));
}

// 2^t of M vectors at once, within 2 ulp for t up to 0, as 2^LEAST below LEAST. Products and sums are rounded one by one, never
// fused: every implementation must get the same bits (kernels/reference/sample.py), for a draw hangs on them. Side by side,
// since one vector's chain of operations would fill the scheduler while it waits.
template <int M>
PW_INLINE void weigh_some(const f32v* t, f32v* w) {
    constexpr float COEFFICIENTS[] = {0.0013398901f, 0.009618438f, 0.055503324f, 0.24022648f, 0.6931472f, 1.0f};
    const f32v rounder = set1(12582912.0f);  // 1.5 * 2^23: the sum's low bits are the whole number next to the other summand
    f32v x[M], shifted[M];
    for (int j = 0; j < M; ++j) x[j] = max(set1(LEAST), t[j]);
    for (int j = 0; j < M; ++j) shifted[j] = add(x[j], rounder);
    for (int j = 0; j < M; ++j) w[j] = sub(shifted[j], rounder);
    for (int j = 0; j < M; ++j) x[j] = sub(x[j], w[j]);
    for (int j = 0; j < M; ++j) w[j] = set1(0.00015353342f);
    for (const float coefficient : COEFFICIENTS) {
        for (int j = 0; j < M; ++j) w[j] = mul(w[j], x[j]);
        for (int j = 0; j < M; ++j) w[j] = add(w[j], set1(coefficient));
    }
    for (int j = 0; j < M; ++j) w[j] = times_power(w[j], shifted[j]);
}

PW_INLINE f32v weight(f32v t) {
    f32v w;
    weigh_some<1>(&t, &w);
    return w;
}

// The units of a single weight.
PW_INLINE uint64_t units(float w) {
    const double sum = 512.0 + double(w);
    uint64_t bits;
    __builtin_memcpy(&bits, &sum, 8);
    return bits - BASE_BITS;
}

}  // namespace pagewell::PW_ISA
