#include "limits.h"
#include "simd.h"

// Nothing is computed from these values: the empty assembler makes the compiler believe that they change.
#if defined(__aarch64__)
#define PW_OPAQUE(x) asm volatile("" : "+w"(x))
#else
#define PW_OPAQUE(x) asm volatile("" : "+v"(x))
#endif

namespace pagewell::PW_ISA {
namespace {

// ---- memory -------------------------------------------------------------------------------------------------------

#if defined(__AVX512F__)
using bytes = __m512i;
PW_INLINE bytes get(const uint8_t* p) { return _mm512_load_si512(p); }
PW_INLINE bytes mix(bytes a, bytes b) { return _mm512_xor_si512(a, b); }
PW_INLINE uint64_t low(bytes a) { return uint64_t(_mm_cvtsi128_si64(_mm512_castsi512_si128(a))); }
#elif defined(__AVX2__)
using bytes = __m256i;
PW_INLINE bytes get(const uint8_t* p) { return _mm256_load_si256((const __m256i*)p); }
PW_INLINE bytes mix(bytes a, bytes b) { return _mm256_xor_si256(a, b); }
PW_INLINE uint64_t low(bytes a) { return uint64_t(_mm_cvtsi128_si64(_mm256_castsi256_si128(a))); }
#else
using bytes = uint8x16_t;
PW_INLINE bytes get(const uint8_t* p) { return vld1q_u8(p); }
PW_INLINE bytes mix(bytes a, bytes b) { return veorq_u8(a, b); }
PW_INLINE uint64_t low(bytes a) { return vgetq_lane_u64(vreinterpretq_u64_u8(a), 0); }
#endif

template <bool PREFETCH>
uint64_t read_all(const uint8_t* data, int64_t n_bytes, int64_t ahead) {
    constexpr int64_t STEP = 1024, SIZE = sizeof(bytes);
    bytes sums[4];
    for (int i = 0; i < 4; ++i) sums[i] = get(data);
    for (int64_t at = 0; at < n_bytes; at += STEP) {
#pragma GCC unroll 64
        for (int64_t i = 0; i < STEP; i += 4 * SIZE) {
#pragma GCC unroll 4
            for (int64_t j = 0; j < 4; ++j) {
                const int64_t offset = i + j * SIZE;
                if (PREFETCH && offset % 64 == 0) __builtin_prefetch(data + at + offset + ahead, 0, 3);
                sums[j] = mix(sums[j], get(data + at + offset));
            }
        }
    }
    return low(mix(mix(sums[0], sums[1]), mix(sums[2], sums[3])));
}

uint64_t read(const uint8_t* data, int64_t n_bytes, int64_t ahead) {
    return ahead > 0 ? read_all<true>(data, n_bytes, ahead) : read_all<false>(data, n_bytes, 0);
}

// ---- float32 ------------------------------------------------------------------------------------------------------

// Twelve chains: more than any core has in flight (two units, four or five cycles), few enough for sixteen registers.
constexpr int CHAINS = 12, UNROLLED = 8;

float f32(int64_t n_rounds) {
    f32v sums[CHAINS];
    for (int i = 0; i < CHAINS; ++i) sums[i] = set1(float(i));
    f32v factor = set1(0.999f), addend = set1(0.001f);
    for (int64_t round = 0; round < n_rounds; ++round) {
#pragma GCC unroll 8
        for (int j = 0; j < UNROLLED; ++j) {
            PW_OPAQUE(factor.v);
#pragma GCC unroll 12
            for (int i = 0; i < CHAINS; ++i) sums[i] = fma(sums[i], factor, addend);
        }
    }
    f32v all = sums[0];
    for (int i = 1; i < CHAINS; ++i) all = add(all, sums[i]);
    return reduce_add(all);
}
constexpr int64_t F32_OPS = int64_t(2) * CHAINS * UNROLLED * f32v::N;

// ---- int8 ---------------------------------------------------------------------------------------------------------

#if defined(__AVX512VNNI__) || defined(__AVXVNNI__) || defined(__aarch64__)

#if defined(__AVX512VNNI__)
using words = __m512i;
PW_INLINE words broadcast(int8_t x) { return _mm512_set1_epi8(x); }
PW_INLINE words dot(words sum, words a, words b) { return _mm512_dpbusd_epi32(sum, a, b); }
PW_INLINE words plus(words a, words b) { return _mm512_add_epi32(a, b); }
PW_INLINE int32_t first(words a) { return _mm_cvtsi128_si32(_mm512_castsi512_si128(a)); }
#elif defined(__AVXVNNI__)
using words = __m256i;
PW_INLINE words broadcast(int8_t x) { return _mm256_set1_epi8(x); }
PW_INLINE words dot(words sum, words a, words b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
PW_INLINE words plus(words a, words b) { return _mm256_add_epi32(a, b); }
PW_INLINE int32_t first(words a) { return _mm_cvtsi128_si32(_mm256_castsi256_si128(a)); }
#else
using words = int32x4_t;
PW_INLINE words broadcast(int8_t x) { return vreinterpretq_s32_s8(vdupq_n_s8(x)); }
PW_INLINE words dot(words sum, words a, words b) { return vdotq_s32(sum, vreinterpretq_s8_s32(a), vreinterpretq_s8_s32(b)); }
PW_INLINE words plus(words a, words b) { return vaddq_s32(a, b); }
PW_INLINE int32_t first(words a) { return vgetq_lane_s32(a, 0); }
#endif

int32_t int8(int64_t n_rounds) {
    words sums[CHAINS], a = broadcast(3), b = broadcast(-2);
    for (int i = 0; i < CHAINS; ++i) sums[i] = broadcast(0);
    for (int64_t round = 0; round < n_rounds; ++round) {
#pragma GCC unroll 8
        for (int j = 0; j < UNROLLED; ++j) {
            PW_OPAQUE(a);
#pragma GCC unroll 12
            for (int i = 0; i < CHAINS; ++i) sums[i] = dot(sums[i], a, b);
        }
    }
    words all = sums[0];
    for (int i = 1; i < CHAINS; ++i) all = plus(all, sums[i]);
    return first(all);
}
constexpr int64_t INT8_OPS = int64_t(2) * CHAINS * UNROLLED * int64_t(sizeof(words));

#else

// Products of 4 and 8 bits, in sums of 16 bits for eight rounds and only then of 32.
int32_t int8(int64_t n_rounds) {
    constexpr int N = 6;
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i wide[N], a = _mm256_set1_epi8(7), b = _mm256_set1_epi8(-2);
    for (int i = 0; i < N; ++i) wide[i] = _mm256_setzero_si256();
    for (int64_t round = 0; round < n_rounds; ++round) {
        __m256i sums[N];
#pragma GCC unroll 6
        for (int i = 0; i < N; ++i) sums[i] = _mm256_maddubs_epi16(a, b);
#pragma GCC unroll 7
        for (int j = 1; j < 8; ++j) {
#pragma GCC unroll 6
            for (int i = 0; i < N; ++i) {
                PW_OPAQUE(a);
                sums[i] = _mm256_add_epi16(sums[i], _mm256_maddubs_epi16(a, b));
            }
        }
#pragma GCC unroll 6
        for (int i = 0; i < N; ++i) {
            PW_OPAQUE(sums[i]);
            wide[i] = _mm256_add_epi32(wide[i], _mm256_madd_epi16(sums[i], ones));
        }
    }
    __m256i all = wide[0];
    for (int i = 1; i < N; ++i) all = _mm256_add_epi32(all, wide[i]);
    return _mm_cvtsi128_si32(_mm256_castsi256_si128(all));
}
constexpr int64_t INT8_OPS = int64_t(6) * 8 * 2 * 32;

#endif

}  // namespace

const LimitsKernels limits = {read, f32, F32_OPS, int8, INT8_OPS};

}  // namespace pagewell::PW_ISA
