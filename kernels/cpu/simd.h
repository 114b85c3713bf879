// One vector of floats per instruction-set level, by one set of names. Included by kernel sources only, which are compiled once per level
// with PW_ISA set to the level's name (see CMakeLists.txt). Functions lie in a namespace of the level, or are PW_INLINE, so that
// the linker can never put one level's code into another's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#else
#include <immintrin.h>
#endif

#if defined(__SANITIZE_ADDRESS__)
extern "C" void* __asan_region_is_poisoned(void* begin, size_t n_bytes);
#endif

namespace pagewell::PW_ISA {

// The address sanitizer sees no masked loads and stores. This shows it which bytes one of them is about to touch.
PW_INLINE void touched([[maybe_unused]] const void* p, [[maybe_unused]] size_t n_bytes) {
#if defined(__SANITIZE_ADDRESS__)
    if (void* bad = n_bytes ? __asan_region_is_poisoned(const_cast<void*>(p), n_bytes) : nullptr) {
        (void)*static_cast<volatile char*>(bad);
    }
#endif
}

// The bits of an E4M3 number, its sign extended, shifted left by 7, are those of a float16 that is 2^-8 of it, but for the second bit,
// which has to be 0 and is the sign's. Float16 holds all of them, the least ones too. One in the last place carries into the second
// bit where the number is NaN, all ones, and nowhere else; what it makes of the second bit is flipped by, so that NaN stays NaN.
constexpr int16_t FP8_LAST = 0x80, FP8_SECOND = 0x4000;
constexpr float FP8_UNIT = 256.0f;

// Of the magnitudes: max_magnitude(a, b) is the larger of a, which has no sign, and |b|; NaN is larger than all (bits are compared).
#if defined(__AVX512F__)

struct f32v {
    static constexpr int N = 16;
    __m512 v;
};
PW_INLINE f32v set1(float x) { return {_mm512_set1_ps(x)}; }
PW_INLINE f32v load(const float* p) { return {_mm512_loadu_ps(p)}; }
PW_INLINE f32v load_some(const float* p, int n) {
    touched(p, size_t(n) * sizeof *p);
    return {_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1), p)};
}
PW_INLINE void store(float* p, f32v x) { _mm512_storeu_ps(p, x.v); }
PW_INLINE void store_some(float* p, f32v x, int n) {
    touched(p, size_t(n) * sizeof *p);
    _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1), x.v);
}
PW_INLINE f32v load_f16(const uint16_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
PW_INLINE void store_f16(uint16_t* p, f32v x) {
    _mm256_storeu_si256((__m256i*)p, _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PW_INLINE f32v load_bf16(const uint16_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16))};
}
PW_INLINE f32v load_s8(const int8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
// Whole numbers from -128 to 127.
PW_INLINE void store_s8(int8_t* p, f32v x) { _mm_storeu_si128((__m128i*)p, _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v))); }
PW_INLINE __m256i fp8_halves(__m128i bytes) {
    const __m256i wide = _mm256_slli_epi16(_mm256_cvtepi8_epi16(bytes), 7);
    const __m256i carried = _mm256_add_epi16(wide, _mm256_set1_epi16(FP8_LAST));
    return _mm256_ternarylogic_epi32(wide, carried, _mm256_set1_epi16(FP8_SECOND), 0x78);  // a ^ (b & c)
}
PW_INLINE f32v load_f8(const uint8_t* p) { return {_mm512_cvtph_ps(fp8_halves(_mm_loadu_si128((const __m128i*)p)))}; }
PW_INLINE f32v add(f32v a, f32v b) { return {_mm512_add_ps(a.v, b.v)}; }
PW_INLINE f32v sub(f32v a, f32v b) { return {_mm512_sub_ps(a.v, b.v)}; }
PW_INLINE f32v mul(f32v a, f32v b) { return {_mm512_mul_ps(a.v, b.v)}; }
PW_INLINE f32v div(f32v a, f32v b) { return {_mm512_div_ps(a.v, b.v)}; }
PW_INLINE f32v fma(f32v a, f32v b, f32v c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PW_INLINE f32v max(f32v a, f32v b) { return {_mm512_max_ps(a.v, b.v)}; }
PW_INLINE f32v min(f32v a, f32v b) { return {_mm512_min_ps(a.v, b.v)}; }
PW_INLINE f32v abs(f32v a) { return {_mm512_abs_ps(a.v)}; }
PW_INLINE f32v max_magnitude(f32v a, f32v b) {
    return {_mm512_castsi512_ps(_mm512_max_epu32(_mm512_castps_si512(a.v), _mm512_castps_si512(abs(b).v)))};
}
PW_INLINE f32v round(f32v a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
// a * 2^k, k a whole number
PW_INLINE f32v scale2(f32v a, f32v k) { return {_mm512_scalef_ps(a.v, k.v)}; }
PW_INLINE float reduce_add(f32v a) { return _mm512_reduce_add_ps(a.v); }
PW_INLINE float reduce_max(f32v a) { return _mm512_reduce_max_ps(a.v); }
PW_INLINE float reduce_max_magnitude(f32v a) {
    return __builtin_bit_cast(float, _mm512_reduce_max_epu32(_mm512_castps_si512(a.v)));
}

#elif defined(__AVX2__)

struct f32v {
    static constexpr int N = 8;
    __m256 v;
};
PW_INLINE __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
PW_INLINE f32v set1(float x) { return {_mm256_set1_ps(x)}; }
PW_INLINE f32v load(const float* p) { return {_mm256_loadu_ps(p)}; }
PW_INLINE f32v load_some(const float* p, int n) {
    touched(p, size_t(n) * sizeof *p);
    return {_mm256_maskload_ps(p, first_lanes(n))};
}
PW_INLINE void store(float* p, f32v x) { _mm256_storeu_ps(p, x.v); }
PW_INLINE void store_some(float* p, f32v x, int n) {
    touched(p, size_t(n) * sizeof *p);
    _mm256_maskstore_ps(p, first_lanes(n), x.v);
}
PW_INLINE f32v load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p))}; }
PW_INLINE void store_f16(uint16_t* p, f32v x) {
    _mm_storeu_si128((__m128i*)p, _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
PW_INLINE f32v load_bf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16))};
}
PW_INLINE f32v load_s8(const int8_t* p) { return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p)))}; }
PW_INLINE void store_s8(int8_t* p, f32v x) {
    const __m256i wide = _mm256_cvtps_epi32(x.v);
    const __m128i half = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
    _mm_storel_epi64((__m128i*)p, _mm_packs_epi16(half, half));
}
PW_INLINE __m128i fp8_halves(__m128i bytes) {  // of the first eight
    const __m128i wide = _mm_slli_epi16(_mm_cvtepi8_epi16(bytes), 7);
    const __m128i carried = _mm_add_epi16(wide, _mm_set1_epi16(FP8_LAST));
    return _mm_xor_si128(wide, _mm_and_si128(carried, _mm_set1_epi16(FP8_SECOND)));
}
PW_INLINE f32v load_f8(const uint8_t* p) { return {_mm256_cvtph_ps(fp8_halves(_mm_loadl_epi64((const __m128i*)p)))}; }
PW_INLINE f32v add(f32v a, f32v b) { return {_mm256_add_ps(a.v, b.v)}; }
PW_INLINE f32v sub(f32v a, f32v b) { return {_mm256_sub_ps(a.v, b.v)}; }
PW_INLINE f32v mul(f32v a, f32v b) { return {_mm256_mul_ps(a.v, b.v)}; }
PW_INLINE f32v div(f32v a, f32v b) { return {_mm256_div_ps(a.v, b.v)}; }
PW_INLINE f32v fma(f32v a, f32v b, f32v c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
PW_INLINE f32v max(f32v a, f32v b) { return {_mm256_max_ps(a.v, b.v)}; }
PW_INLINE f32v min(f32v a, f32v b) { return {_mm256_min_ps(a.v, b.v)}; }
PW_INLINE f32v abs(f32v a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
PW_INLINE f32v max_magnitude(f32v a, f32v b) {
    return {_mm256_castsi256_ps(_mm256_max_epu32(_mm256_castps_si256(a.v), _mm256_castps_si256(abs(b).v)))};
}
PW_INLINE f32v round(f32v a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
PW_INLINE f32v scale2(f32v a, f32v k) {
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(k.v), _mm256_set1_epi32(127));
    const __m256i kept = _mm256_max_epi32(_mm256_min_epi32(exponent, _mm256_set1_epi32(254)), _mm256_setzero_si256());
    return {_mm256_mul_ps(a.v, _mm256_castsi256_ps(_mm256_slli_epi32(kept, 23)))};
}
PW_INLINE float reduce_add(f32v a) {
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
PW_INLINE float reduce_max(f32v a) {
    __m128 x = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
PW_INLINE float reduce_max_magnitude(f32v a) {
    const __m256i bits = _mm256_castps_si256(a.v);
    __m128i x = _mm_max_epu32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1));
    x = _mm_max_epu32(x, _mm_unpackhi_epi64(x, x));
    x = _mm_max_epu32(x, _mm_shuffle_epi32(x, 1));
    return _mm_cvtss_f32(_mm_castsi128_ps(x));
}

#elif defined(__aarch64__)

struct f32v {
    static constexpr int N = 4;
    float32x4_t v;
};
PW_INLINE f32v set1(float x) { return {vdupq_n_f32(x)}; }
PW_INLINE f32v load(const float* p) { return {vld1q_f32(p)}; }
PW_INLINE f32v load_some(const float* p, int n) {
    float part[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; ++i) part[i] = p[i];
    return {vld1q_f32(part)};
}
PW_INLINE void store(float* p, f32v x) { vst1q_f32(p, x.v); }
PW_INLINE void store_some(float* p, f32v x, int n) {
    float part[4];
    vst1q_f32(part, x.v);
    for (int i = 0; i < n; ++i) p[i] = part[i];
}
PW_INLINE f32v load_f16(const uint16_t* p) { return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)))}; }
PW_INLINE void store_f16(uint16_t* p, f32v x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x.v))); }
PW_INLINE f32v load_bf16(const uint16_t* p) { return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16))}; }
PW_INLINE f32v load_s8(const int8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))))};
}
PW_INLINE void store_s8(int8_t* p, f32v x) {
    const int16x4_t half = vqmovn_s32(vcvtnq_s32_f32(x.v));
    const int32_t four = vget_lane_s32(vreinterpret_s32_s8(vqmovn_s16(vcombine_s16(half, half))), 0);
    __builtin_memcpy(p, &four, 4);
}
PW_INLINE float16x8_t fp8_halves(int8x8_t bytes) {
    const int16x8_t wide = vshll_n_s8(bytes, 7), carried = vaddq_s16(wide, vdupq_n_s16(FP8_LAST));
    return vreinterpretq_f16_s16(veorq_s16(wide, vandq_s16(carried, vdupq_n_s16(FP8_SECOND))));
}
PW_INLINE f32v load_f8(const uint8_t* p) {
    int32_t four;
    __builtin_memcpy(&four, p, 4);
    return {vcvt_f32_f16(vget_low_f16(fp8_halves(vreinterpret_s8_s32(vdup_n_s32(four)))))};
}
PW_INLINE f32v add(f32v a, f32v b) { return {vaddq_f32(a.v, b.v)}; }
PW_INLINE f32v sub(f32v a, f32v b) { return {vsubq_f32(a.v, b.v)}; }
PW_INLINE f32v mul(f32v a, f32v b) { return {vmulq_f32(a.v, b.v)}; }
PW_INLINE f32v div(f32v a, f32v b) { return {vdivq_f32(a.v, b.v)}; }
PW_INLINE f32v fma(f32v a, f32v b, f32v c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
PW_INLINE f32v max(f32v a, f32v b) { return {vmaxq_f32(a.v, b.v)}; }
PW_INLINE f32v min(f32v a, f32v b) { return {vminq_f32(a.v, b.v)}; }
PW_INLINE f32v abs(f32v a) { return {vabsq_f32(a.v)}; }
PW_INLINE f32v max_magnitude(f32v a, f32v b) {
    return {vreinterpretq_f32_u32(vmaxq_u32(vreinterpretq_u32_f32(a.v), vreinterpretq_u32_f32(abs(b).v)))};
}
PW_INLINE f32v round(f32v a) { return {vrndnq_f32(a.v)}; }
PW_INLINE f32v scale2(f32v a, f32v k) {
    const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(k.v), vdupq_n_s32(127));
    const int32x4_t kept = vmaxq_s32(vminq_s32(exponent, vdupq_n_s32(254)), vdupq_n_s32(0));
    return {vmulq_f32(a.v, vreinterpretq_f32_s32(vshlq_n_s32(kept, 23)))};
}
PW_INLINE float reduce_add(f32v a) { return vaddvq_f32(a.v); }
PW_INLINE float reduce_max(f32v a) { return vmaxvq_f32(a.v); }
PW_INLINE float reduce_max_magnitude(f32v a) { return __builtin_bit_cast(float, vmaxvq_u32(vreinterpretq_u32_f32(a.v))); }

#endif

PW_INLINE f32v zero() { return set1(0.0f); }

// float32 -> bfloat16, to nearest even; NaN stays NaN.
PW_INLINE uint16_t to_bf16(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
PW_INLINE void store_bf16(uint16_t* p, f32v x) {
    float values[f32v::N];
    store(values, x);
    for (int i = 0; i < f32v::N; ++i) p[i] = to_bf16(values[i]);
}

// float32 within -448 .. 448, or NaN, -> E4M3, to nearest even; NaN stays NaN.
PW_INLINE void store_f8(uint8_t* p, f32v x) {
    // Vectors of GCC and Clang: the same on all levels.
    typedef uint32_t words __attribute__((vector_size(sizeof x)));
    typedef float floats __attribute__((vector_size(sizeof x)));
    typedef uint8_t bytes __attribute__((vector_size(f32v::N)));
    const auto bits = __builtin_bit_cast(words, x.v), size = bits & 0x7fffffff;
    const words normal = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
    // Below 2^-6 all are whole numbers of 2^-9, which is the last bit of 2^14.
    const words tiny = __builtin_bit_cast(words, __builtin_bit_cast(floats, size) + 16384.0f) - 0x46800000;
    const words code = size < 0x3c800000 ? tiny : normal, nan = words{} + 0x7f;
    const auto out = __builtin_convertvector((code < nan ? code : nan) | (bits >> 24 & 0x80), bytes);
    __builtin_memcpy(p, &out, sizeof out);
}

// e^x within 2 ulp: 2^k times a polynomial (Cephes' expf). x below -87.3 gives 0, above 88.37 what 88.37 gives, 2.4e38: k is 127 at
// most, for scale2 can no more. NaN stays NaN.
PW_INLINE f32v exp(f32v x) {
    const f32v low = set1(-87.33654f);
    f32v y = min(set1(88.37f), max(low, x));
    const f32v k = round(mul(y, set1(1.44269504f)));
    y = fma(k, set1(-0.693359375f), y);
    y = fma(k, set1(2.12194440e-4f), y);
    f32v p = set1(1.9875691500e-4f);
    p = fma(p, y, set1(1.3981999507e-3f));
    p = fma(p, y, set1(8.3334519073e-3f));
    p = fma(p, y, set1(4.1665795894e-2f));
    p = fma(p, y, set1(1.6666665459e-1f));
    p = fma(p, y, set1(5.0000001201e-1f));
    p = add(fma(p, mul(y, y), y), set1(1.0f));
    const f32v e = scale2(p, k);
#if defined(__AVX512F__)
    const __mmask16 below = _mm512_cmp_ps_mask(x.v, low.v, _CMP_LT_OQ), nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
    return {_mm512_mask_mov_ps(_mm512_maskz_mov_ps(__mmask16(~below), e.v), nan, x.v)};
#elif defined(__AVX2__)
    const __m256 kept = _mm256_andnot_ps(_mm256_cmp_ps(x.v, low.v, _CMP_LT_OQ), e.v);
    return {_mm256_blendv_ps(kept, x.v, _mm256_cmp_ps(x.v, x.v, _CMP_UNORD_Q))};
#else
    const float32x4_t kept = vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(e.v), vcltq_f32(x.v, low.v)));
    return {vbslq_f32(vceqq_f32(x.v, x.v), kept, x.v)};
#endif
}

PW_INLINE f32v sigmoid(f32v x) { return div(set1(1.0f), add(set1(1.0f), exp(sub(zero(), x)))); }

PW_INLINE f32v silu(f32v x) { return mul(x, sigmoid(x)); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2 u), with u = sqrt(2 / pi) (x + 0.044715 x^3)
PW_INLINE f32v gelu_tanh(f32v x) {
    return mul(x, sigmoid(mul(set1(1.5957691216057308f), fma(mul(mul(x, x), x), set1(0.044715f), x))));
}

}  // namespace pagewell::PW_ISA
