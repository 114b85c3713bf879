// What a panel's kernels need of a level: 16 floats, 64 bytes of packed weights (16 rows of 4 values), and dot products of them with 4 activations.
//   F    16 floats, one for each row of the panel
//   W    64 bytes: 4 consecutive values of K for each of 16 rows
//   Dot  16 sums in the making
// Included by kernel sources only.
#pragma once

#include "simd.h"

namespace pagewell::PW_ISA {

// Sums of the first and the second 16 of 32 bytes: of those that meet in the low and in the high half of a Dot's 32 bits, where it has halves.
struct PairSums {
    int32_t low[2], high[2];
};

#if defined(__AVX2__)

PW_INLINE PairSums sums_of_halves(__m256i bytes) {
    // Eight unsigned bytes at a time: 128 is added to each.
    const __m256i sums = _mm256_sad_epu8(_mm256_xor_si256(bytes, _mm256_set1_epi8(char(0x80))), _mm256_setzero_si256());
    const __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
    const auto total = [](__m128i x) { return _mm_cvtsi128_si32(_mm_add_epi32(x, _mm_unpackhi_epi64(x, x))) - 16 * 128; };
    return {{total(first), total(second)}, {0, 0}};
}

#endif

#if defined(__AVX512F__)

struct F {
    __m512 v;
};
PW_INLINE F f_zero() { return {_mm512_setzero_ps()}; }
PW_INLINE F f_all(float x) { return {_mm512_set1_ps(x)}; }
PW_INLINE F f_load(const float* p) { return {_mm512_loadu_ps(p)}; }
PW_INLINE void f_store(float* p, F x) { _mm512_storeu_ps(p, x.v); }
PW_INLINE F f_mul(F a, F b) { return {_mm512_mul_ps(a.v, b.v)}; }
PW_INLINE F f_fma(F a, F b, F c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
PW_INLINE F f_half(const uint8_t* p) { return {_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p))}; }
PW_INLINE F f_bf16(const uint8_t* p) { return {load_bf16((const uint16_t*)p).v}; }
PW_INLINE F f_u8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
PW_INLINE F f_s8(const uint8_t* p) { return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)p)))}; }
// Sixteen nibbles, the low or the high ones of 16 bytes
template <bool HIGH>
PW_INLINE F f_u4(const uint8_t* p) {
    const __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)p));
    return {_mm512_cvtepi32_ps(HIGH ? _mm512_srli_epi32(bytes, 4) : _mm512_and_si512(bytes, _mm512_set1_epi32(15)))};
}

struct W {
    __m512i v;
};
PW_INLINE W w_load(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
PW_INLINE void w_store(uint8_t* p, W w) { _mm512_storeu_si512(p, w.v); }
PW_INLINE W w_and(W a, int mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi8(char(mask)))}; }
// a | (b & mask)
PW_INLINE W w_or_and(W a, W b, int mask) { return {_mm512_ternarylogic_epi32(a.v, b.v, _mm512_set1_epi8(char(mask)), 0xf8)}; }
template <int S>
PW_INLINE W w_shift(W a) {  // by S bits to the left, or -S to the right; bits of neighbouring bytes come in
    if constexpr (S >= 0) return {_mm512_slli_epi16(a.v, S)};
    else return {_mm512_srli_epi16(a.v, -S)};
}
PW_INLINE W w_xor(W a, int mask) { return {_mm512_xor_si512(a.v, _mm512_set1_epi8(char(mask)))}; }
PW_INLINE W w_sub(W a, int x) { return {_mm512_sub_epi8(a.v, _mm512_set1_epi8(char(x)))}; }
template <int B>
PW_INLINE F w_float(W a) {  // byte B of each row, signed
    return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(a.v, 24 - 8 * B), 24))};
}
// table[byte B of each row], bytes below 16; table has 64 aligned bytes
template <int B>
PW_INLINE F w_look_up(W a, const float* table) {
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(a.v, 8 * B), _mm512_load_ps(table))};
}
// table[byte] for each byte, all below 16
PW_INLINE W w_codes(W a, const uint8_t* table) {
    return {_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)table)), a.v)};
}
// Sixteen numbers of FP8_UNIT each
PW_INLINE F f_fp8(const uint8_t* p) { return {load_f8(p).v}; }

constexpr bool UNSIGNED_DOTS = true;  // weights are unsigned bytes
struct Dot {
    __m512i v;
};
PW_INLINE Dot dot_zero() { return {_mm512_setzero_si512()}; }
PW_INLINE Dot dot_seed(int32_t seed) { return {_mm512_set1_epi32(seed)}; }
PW_INLINE int32_t four(const int8_t* x) {
    int32_t word;
    __builtin_memcpy(&word, x, 4);
    return word;
}
// dot += w * x, w unsigned
PW_INLINE Dot dot_add(Dot dot, W w, const int8_t* x) { return {_mm512_dpbusd_epi32(dot.v, w.v, _mm512_set1_epi32(four(x)))}; }
PW_INLINE F dot_float(Dot dot) { return {_mm512_cvtepi32_ps(dot.v)}; }
PW_INLINE int32_t dot_seed_of(int32_t low, int32_t) { return low; }
// 32 floats, which are within -127 .. 127 or give any bytes, to the nearest integers.
PW_INLINE PairSums store_s8(int8_t* p, const f32v (&x)[2]) {
    const __m256i bytes = _mm256_set_m128i(_mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x[1].v)), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(x[0].v)));
    _mm256_storeu_si256((__m256i*)p, bytes);
    return sums_of_halves(bytes);
}

#elif defined(__AVX2__)

struct F {
    __m256 a, b;
};
PW_INLINE F f_zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
PW_INLINE F f_all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
PW_INLINE F f_load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
PW_INLINE void f_store(float* p, F x) {
    _mm256_storeu_ps(p, x.a);
    _mm256_storeu_ps(p + 8, x.b);
}
PW_INLINE F f_mul(F x, F y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
PW_INLINE F f_fma(F x, F y, F z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
PW_INLINE F f_half(const uint8_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 16)))};
}
PW_INLINE F f_bf16(const uint8_t* p) { return {load_bf16((const uint16_t*)p).v, load_bf16((const uint16_t*)p + 8).v}; }
PW_INLINE F f_u8(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
PW_INLINE F f_s8(const uint8_t* p) {
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)p))),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)(p + 8))))};
}
template <bool HIGH>
PW_INLINE F f_u4(const uint8_t* p) {
    const auto eight = [](const uint8_t* from) {
        const __m256i bytes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
        return _mm256_cvtepi32_ps(HIGH ? _mm256_srli_epi32(bytes, 4) : _mm256_and_si256(bytes, _mm256_set1_epi32(15)));
    };
    return {eight(p), eight(p + 8)};
}

struct W {
    __m256i a, b;
};
PW_INLINE W w_load(const uint8_t* p) { return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))}; }
PW_INLINE void w_store(uint8_t* p, W w) {
    _mm256_storeu_si256((__m256i*)p, w.a);
    _mm256_storeu_si256((__m256i*)(p + 32), w.b);
}
PW_INLINE W w_and(W x, int mask) {
    const __m256i m = _mm256_set1_epi8(char(mask));
    return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
PW_INLINE W w_or_and(W x, W y, int mask) {
    const W z = w_and(y, mask);
    return {_mm256_or_si256(x.a, z.a), _mm256_or_si256(x.b, z.b)};
}
template <int S>
PW_INLINE W w_shift(W x) {
    if constexpr (S >= 0) return {_mm256_slli_epi16(x.a, S), _mm256_slli_epi16(x.b, S)};
    else return {_mm256_srli_epi16(x.a, -S), _mm256_srli_epi16(x.b, -S)};
}
PW_INLINE W w_xor(W x, int mask) {
    const __m256i m = _mm256_set1_epi8(char(mask));
    return {_mm256_xor_si256(x.a, m), _mm256_xor_si256(x.b, m)};
}
PW_INLINE W w_sub(W x, int y) {
    const __m256i m = _mm256_set1_epi8(char(y));
    return {_mm256_sub_epi8(x.a, m), _mm256_sub_epi8(x.b, m)};
}
template <int B>
PW_INLINE F w_float(W x) {
    return {_mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x.a, 24 - 8 * B), 24)),
            _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(x.b, 24 - 8 * B), 24))};
}
template <int B>
PW_INLINE F w_look_up(W x, const float* table) {
    const __m256 low = _mm256_load_ps(table), high = _mm256_load_ps(table + 8);
    const auto eight = [&](__m256i w) {
        const __m256i i = _mm256_srli_epi32(w, 8 * B);
        const __m256 upper = _mm256_castsi256_ps(_mm256_slli_epi32(i, 28));  // bit 3 as the sign
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, i), _mm256_permutevar8x32_ps(high, i), upper);
    };
    return {eight(x.a), eight(x.b)};
}
PW_INLINE W w_codes(W x, const uint8_t* table) {
    const __m256i codes = _mm256_broadcastsi128_si256(_mm_load_si128((const __m128i*)table));
    return {_mm256_shuffle_epi8(codes, x.a), _mm256_shuffle_epi8(codes, x.b)};
}
PW_INLINE F f_fp8(const uint8_t* p) { return {load_f8(p).v, load_f8(p + 8).v}; }
PW_INLINE __m256i four(const int8_t* x) {
    int32_t word;
    __builtin_memcpy(&word, x, 4);
    return _mm256_set1_epi32(word);
}

struct Dot {
    __m256i a, b;
};
PW_INLINE Dot dot_zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
PW_INLINE Dot dot_seed(int32_t seed) { return {_mm256_set1_epi32(seed), _mm256_set1_epi32(seed)}; }

PW_INLINE __m256i nearest_s8(const f32v (&x)[4]) {
    const __m256i low = _mm256_packs_epi32(_mm256_cvtps_epi32(x[0].v), _mm256_cvtps_epi32(x[1].v));
    const __m256i high = _mm256_packs_epi32(_mm256_cvtps_epi32(x[2].v), _mm256_cvtps_epi32(x[3].v));
    return _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

#if defined(__AVXVNNI__)

PW_INLINE int32_t dot_seed_of(int32_t low, int32_t) { return low; }
PW_INLINE PairSums store_s8(int8_t* p, const f32v (&x)[4]) {
    const __m256i bytes = nearest_s8(x);
    _mm256_storeu_si256((__m256i*)p, bytes);
    return sums_of_halves(bytes);
}

constexpr bool UNSIGNED_DOTS = true;
PW_INLINE Dot dot_add(Dot dot, W w, const int8_t* x) {
    return {_mm256_dpbusd_avx_epi32(dot.a, w.a, four(x)), _mm256_dpbusd_avx_epi32(dot.b, w.b, four(x))};
}
PW_INLINE F dot_float(Dot dot) { return {_mm256_cvtepi32_ps(dot.a), _mm256_cvtepi32_ps(dot.b)}; }

#else

// Sums are kept in 16 bits, two for each row, and widened once per dot: half again as fast as widening every product. With weights in
// -16 .. 15 (or 0 .. 15) over 32 values, or -32 .. 31 over 16, and |x| <= 127, a finished sum fits, however it wrapped on the way.
constexpr bool UNSIGNED_DOTS = false;
PW_INLINE Dot dot_add(Dot dot, W w, const int8_t* x) {
    // Pinned down: left to itself the compiler keeps the products of several steps and spills the sums.
    const __m256i y = four(x);
    __m256i p, r;
    asm("vpmaddubsw %1, %2, %0" : "=x"(p) : "x"(y), "x"(w.a));
    asm("vpmaddubsw %1, %2, %0" : "=x"(r) : "x"(y), "x"(w.b));
    asm("vpaddw %1, %0, %0" : "+x"(dot.a) : "x"(p));
    asm("vpaddw %1, %0, %0" : "+x"(dot.b) : "x"(r));
    return dot;
}
PW_INLINE F dot_float(Dot dot) {
    const __m256i ones = _mm256_set1_epi16(1);
    return {_mm256_cvtepi32_ps(_mm256_madd_epi16(dot.a, ones)), _mm256_cvtepi32_ps(_mm256_madd_epi16(dot.b, ones))};
}
// Of signed bytes: no room in 16 bits for more than one step.
PW_INLINE Dot dot_add_signed(Dot dot, W w, const int8_t* x) {
    const __m256i ones = _mm256_set1_epi16(1), y = four(x);
    const __m256i p = _mm256_maddubs_epi16(_mm256_sign_epi8(w.a, w.a), _mm256_sign_epi8(y, w.a));
    const __m256i r = _mm256_maddubs_epi16(_mm256_sign_epi8(w.b, w.b), _mm256_sign_epi8(y, w.b));
    return {_mm256_add_epi32(dot.a, _mm256_madd_epi16(p, ones)), _mm256_add_epi32(dot.b, _mm256_madd_epi16(r, ones))};
}
PW_INLINE int32_t dot_seed_of(int32_t low, int32_t high) { return int32_t(uint32_t(low) & 0xffff) | int32_t(uint32_t(high) << 16); }
// vpmaddubsw puts bytes 0 and 1 of four into the low half, 2 and 3 into the high one.
PW_INLINE PairSums store_s8(int8_t* p, const f32v (&x)[4]) {
    const __m256i bytes = nearest_s8(x);
    _mm256_storeu_si256((__m256i*)p, bytes);
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    const __m256i low = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1)), high = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 << 16));
    const __m256i twos = _mm256_hadd_epi32(low, high), sums = _mm256_hadd_epi32(twos, twos);  // low, high of each half
    const __m128i first = _mm256_castsi256_si128(sums), second = _mm256_extracti128_si256(sums, 1);
    return {{_mm_cvtsi128_si32(first), _mm_cvtsi128_si32(second)}, {_mm_extract_epi32(first, 1), _mm_extract_epi32(second, 1)}};
}
PW_INLINE F dot_float_wide(Dot dot) { return {_mm256_cvtepi32_ps(dot.a), _mm256_cvtepi32_ps(dot.b)}; }

#endif

#elif defined(__aarch64__)

struct F {
    float32x4_t v[4];
};
template <typename Each>
PW_INLINE F f_each(const Each& each) {
    return {{each(0), each(1), each(2), each(3)}};
}
PW_INLINE F f_all(float x) { return f_each([x](int) { return vdupq_n_f32(x); }); }
PW_INLINE F f_zero() { return f_all(0.0f); }
PW_INLINE F f_load(const float* p) { return f_each([p](int i) { return vld1q_f32(p + 4 * i); }); }
PW_INLINE void f_store(float* p, F x) {
    for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.v[i]);
}
PW_INLINE F f_mul(F x, F y) { return f_each([&](int i) { return vmulq_f32(x.v[i], y.v[i]); }); }
PW_INLINE F f_fma(F x, F y, F z) { return f_each([&](int i) { return vfmaq_f32(z.v[i], x.v[i], y.v[i]); }); }
PW_INLINE F f_half(const uint8_t* p) { return f_each([p](int i) { return load_f16((const uint16_t*)p + 4 * i).v; }); }
PW_INLINE F f_bf16(const uint8_t* p) { return f_each([p](int i) { return load_bf16((const uint16_t*)p + 4 * i).v; }); }
PW_INLINE F f_u8(uint8x16_t bytes) {
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_u8(vget_high_u8(bytes));
    return {{vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(low))),
             vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_u16(vget_high_u16(high)))}};
}
PW_INLINE F f_u8(const uint8_t* p) { return f_u8(vld1q_u8(p)); }
template <bool HIGH>
PW_INLINE F f_u4(const uint8_t* p) {
    return f_u8(HIGH ? vshrq_n_u8(vld1q_u8(p), 4) : vandq_u8(vld1q_u8(p), vdupq_n_u8(15)));
}
PW_INLINE F f_s8(const uint8_t* p) {
    const int8x16_t bytes = vld1q_s8((const int8_t*)p);
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_s8(vget_high_s8(bytes));
    return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(low))),
             vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(high)))}};
}

struct W {
    uint8x16_t v[4];
};
template <typename Each>
PW_INLINE W w_each(const Each& each) {
    return {{each(0), each(1), each(2), each(3)}};
}
PW_INLINE W w_load(const uint8_t* p) { return w_each([p](int i) { return vld1q_u8(p + 16 * i); }); }
PW_INLINE void w_store(uint8_t* p, W w) {
    for (int i = 0; i < 4; ++i) vst1q_u8(p + 16 * i, w.v[i]);
}
PW_INLINE W w_and(W x, int mask) { return w_each([&](int i) { return vandq_u8(x.v[i], vdupq_n_u8(uint8_t(mask))); }); }
PW_INLINE W w_or_and(W x, W y, int mask) {
    return w_each([&](int i) { return vorrq_u8(x.v[i], vandq_u8(y.v[i], vdupq_n_u8(uint8_t(mask)))); });
}
template <int S>
PW_INLINE W w_shift(W x) {
    return w_each([&](int i) {
        const uint16x8_t wide = vreinterpretq_u16_u8(x.v[i]);
        if constexpr (S > 0) return vreinterpretq_u8_u16(vshlq_n_u16(wide, S));
        else if constexpr (S < 0) return vreinterpretq_u8_u16(vshrq_n_u16(wide, -S));
        else return x.v[i];
    });
}
PW_INLINE W w_xor(W x, int mask) { return w_each([&](int i) { return veorq_u8(x.v[i], vdupq_n_u8(uint8_t(mask))); }); }
PW_INLINE W w_sub(W x, int y) { return w_each([&](int i) { return vsubq_u8(x.v[i], vdupq_n_u8(uint8_t(y))); }); }
template <int B>
PW_INLINE F w_float(W x) {
    return f_each([&](int i) {
        const int32x4_t words = vreinterpretq_s32_u8(x.v[i]);
        if constexpr (B == 3) return vcvtq_f32_s32(vshrq_n_s32(words, 24));
        else return vcvtq_f32_s32(vshrq_n_s32(vshlq_n_s32(words, 24 - 8 * B), 24));
    });
}
template <int B>
PW_INLINE F w_look_up(W x, const float* table) {
    uint8x16x4_t bytes;
    for (int i = 0; i < 4; ++i) bytes.val[i] = vreinterpretq_u8_f32(vld1q_f32(table + 4 * i));
    return f_each([&](int i) {
        const uint32x4_t first = vandq_u32(vshrq_n_u32(vshlq_n_u32(vreinterpretq_u32_u8(x.v[i]), 24 - 8 * B), 22), vdupq_n_u32(60));
        const uint32x4_t places = vmlaq_u32(vdupq_n_u32(0x03020100), first, vdupq_n_u32(0x01010101));
        return vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(places)));
    });
}
PW_INLINE W w_codes(W x, const uint8_t* table) {
    const uint8x16_t codes = vld1q_u8(table);
    return w_each([&](int i) { return vqtbl1q_u8(codes, x.v[i]); });
}
PW_INLINE F f_fp8(const uint8_t* p) {
    const int8x16_t bytes = vld1q_s8((const int8_t*)p);
    const float16x8_t low = fp8_halves(vget_low_s8(bytes)), high = fp8_halves(vget_high_s8(bytes));
    return {{vcvt_f32_f16(vget_low_f16(low)), vcvt_f32_f16(vget_high_f16(low)), vcvt_f32_f16(vget_low_f16(high)),
             vcvt_f32_f16(vget_high_f16(high))}};
}

constexpr bool UNSIGNED_DOTS = false;
struct Dot {
    int32x4_t v[4];
};
PW_INLINE Dot dot_seed(int32_t seed) {
    const int32x4_t all = vdupq_n_s32(seed);
    return {{all, all, all, all}};
}
PW_INLINE Dot dot_zero() { return dot_seed(0); }
PW_INLINE Dot dot_add(Dot dot, W w, const int8_t* x) {
    int32_t word;
    __builtin_memcpy(&word, x, 4);
    const int8x16_t y = vreinterpretq_s8_s32(vdupq_n_s32(word));
    for (int i = 0; i < 4; ++i) dot.v[i] = vdotq_s32(dot.v[i], vreinterpretq_s8_u8(w.v[i]), y);
    return dot;
}
PW_INLINE F dot_float(Dot dot) { return f_each([&](int i) { return vcvtq_f32_s32(dot.v[i]); }); }
PW_INLINE int32_t dot_seed_of(int32_t low, int32_t) { return low; }
PW_INLINE PairSums store_s8(int8_t* p, const f32v (&x)[8]) {
    PairSums sums{};
    for (int i = 0; i < 2; ++i) {
        int16x4_t four[4];
        for (int j = 0; j < 4; ++j) four[j] = vqmovn_s32(vcvtnq_s32_f32(x[4 * i + j].v));
        const int8x16_t bytes = vcombine_s8(vqmovn_s16(vcombine_s16(four[0], four[1])), vqmovn_s16(vcombine_s16(four[2], four[3])));
        vst1q_s8(p + 16 * i, bytes);
        sums.low[i] = vaddlvq_s8(bytes);
    }
    return sums;
}

#endif

}  // namespace pagewell::PW_ISA
