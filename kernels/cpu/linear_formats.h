// How each format's blocks lie in a panel, and how they are read. Included by kernel sources only.
#pragma once

#include "linear.h"
#include "simd16.h"

namespace pagewell::PW_ISA {

// Rows of activations that share what is loaded of a panel: as many as the registers hold sums of.
#if defined(__AVX512F__)
constexpr int TILE = 8;
#else
constexpr int TILE = 4;
#endif

// Bytes that are asked for ahead of their use; measured, 4 KiB beat 1 and 2 where weights come from memory.
constexpr int AHEAD = 4096;
PW_INLINE void prefetch(const uint8_t* p) {
    __builtin_prefetch(p + AHEAD, 0, 3);
}

// HEAD bytes before every NB blocks; a block is META bytes of scales (and minimums), HIGH bytes of high bits, then the low bits.
template <Format T>
struct Layout;
struct Plain {
    static constexpr int HEAD = 0, NB = 1;
    static constexpr bool HALVES = false;
};
struct Super {
    static constexpr int NB = 8;
};
// The head is each row's float32 scale for N values and, with Z, its zero point: a byte, or of INT8 a bfloat16 with the sign changed. N divides
// what is unpacked at once.
template <int N, int B, bool Z = false>
struct Scaled {
    static constexpr int NB = N / BLOCK, BITS = B, HEAD = !Z ? 64 : B == 8 ? 96 : 80, META = 0, HIGH = 0;
    static constexpr int ZERO = B == 8 && UNSIGNED_DOTS ? ZERO_128 : -1;
    static constexpr bool MINS = Z, HALVES = false;
};
template <>
struct Layout<Q4_0> : Plain {
    static constexpr int BITS = 4, META = 32, HIGH = 0, ZERO = ZERO_8;
    static constexpr bool MINS = false;
};
template <>
struct Layout<Q4_1> : Plain {
    static constexpr int BITS = 4, META = 64, HIGH = 0, ZERO = -1;
    static constexpr bool MINS = true;
};
template <>
struct Layout<Q5_0> : Plain {
    static constexpr int BITS = 5, META = 32, HIGH = 64, ZERO = ZERO_16;
    static constexpr bool MINS = false;
};
// Five bits without a sign would not fit the sums of 16 bits: 16 is taken off and made up for in the minimum.
template <>
struct Layout<Q5_1> : Plain {
    static constexpr int BITS = 5, META = 64, HIGH = 64, ZERO = ZERO_16;
    static constexpr bool MINS = true;
};
template <>
struct Layout<Q8_0> : Plain {
    static constexpr int BITS = 8, META = 32, HIGH = 0, ZERO = UNSIGNED_DOTS ? ZERO_128 : -1;
    static constexpr bool MINS = false;
};
template <>
struct Layout<Q4_K> : Super {
    static constexpr int BITS = 4, HEAD = 64, META = 32, HIGH = 0, ZERO = -1;
    static constexpr bool MINS = true, HALVES = false;
};
template <>
struct Layout<Q5_K> : Super {
    static constexpr int BITS = 5, HEAD = 64, META = 32, HIGH = 64, ZERO = ZERO_16;
    static constexpr bool MINS = true, HALVES = false;
};
template <>
struct Layout<Q6_K> : Super {
    static constexpr int BITS = 6, HEAD = 32, META = 32, HIGH = 128, ZERO = HALVES_32;
    static constexpr bool MINS = false, HALVES = true;
};
// A byte of META has the scale of a half in its low bits, and the minimum in its high ones.
template <>
struct Layout<Q2_K> : Super {
    static constexpr int BITS = 2, HEAD = 64, META = 32, HIGH = 0, ZERO = -1;
    static constexpr bool MINS = true, HALVES = true;
};
template <>
struct Layout<Q3_K> : Super {
    static constexpr int BITS = 3, HEAD = 32, META = 32, HIGH = 64, ZERO = HALVES_4;
    static constexpr bool MINS = false, HALVES = true;
};
// Codes that stand for signed bytes.
constexpr int ZERO_OF_BYTES = UNSIGNED_DOTS ? ZERO_128 : -1;
template <>
struct Layout<IQ4_NL> : Plain {
    static constexpr int BITS = 4, META = 32, HIGH = 0, ZERO = ZERO_OF_BYTES;
    static constexpr bool MINS = false;
};
template <>
struct Layout<IQ4_XS> : Super {
    static constexpr int BITS = 4, HEAD = 32, META = 16, HIGH = 0, ZERO = ZERO_OF_BYTES;
    static constexpr bool MINS = false, HALVES = false;
};
struct Ternary : Super {
    static constexpr int BITS = 2, HEAD = 32, META = 0, HIGH = 0, ZERO = ZERO_1;
    static constexpr bool MINS = false, HALVES = false;
};
template <>
struct Layout<TQ1_0> : Ternary {};
template <>
struct Layout<TQ2_0> : Ternary {};
// Codes of a grid, which stand for signed bytes or, with Z, for integers from -15 to 15. META is a scale for each block or half.
template <int B, bool H, int Z>
struct Grid : Super {
    static constexpr int BITS = B, HEAD = 32, META = H ? 32 : 16, HIGH = B == 3 ? 64 : 0, ZERO = Z;
    static constexpr bool MINS = false, HALVES = H;
};
template <>
struct Layout<IQ2_XXS> : Grid<3, false, ZERO_OF_BYTES> {};
template <>
struct Layout<IQ2_XS> : Grid<3, true, UNSIGNED_DOTS ? HALVES_128 : -1> {};
template <>
struct Layout<IQ2_S> : Layout<IQ2_XS> {};
template <>
struct Layout<IQ3_XXS> : Grid<4, false, ZERO_OF_BYTES> {};
template <>
struct Layout<IQ3_S> : Grid<4, false, ZERO_16> {};
template <>
struct Layout<IQ1_S> : Grid<3, false, ZERO_16> {};
template <>
struct Layout<IQ1_M> : Grid<3, true, HALVES_16> {};
// Codes that stand for integers from -12 to 12, twice what E2M1 means. META is half of the scale, a bfloat16.
struct Short : Plain {
    static constexpr int BITS = 4, META = 32, HIGH = 0, ZERO = ZERO_16;
    static constexpr bool MINS = false;
};
template <>
struct Layout<MXFP4> : Short {};
template <>
struct Layout<E2M1_SHORT> : Short {};
template <>
struct Layout<E2M1_32> : Scaled<32, 4> {
    static constexpr int ZERO = ZERO_16;
};
// The head has the scales of both halves.
template <>
struct Layout<E2M1_16> : Scaled<32, 4> {
    static constexpr int HEAD = 128, ZERO = HALVES_16;
    static constexpr bool HALVES = true;
};

template <>
struct Layout<INT4_128> : Scaled<128, 4, true> {};
template <>
struct Layout<INT4_64> : Scaled<64, 4, true> {};
template <>
struct Layout<INT4_32> : Scaled<32, 4, true> {};
template <>
struct Layout<INT8_128> : Scaled<128, 8> {};
template <>
struct Layout<INT8_32> : Scaled<32, 8> {};
template <>
struct Layout<INT8_ZERO_128> : Scaled<128, 8, true> {};
template <>
struct Layout<INT8_ZERO_32> : Scaled<32, 8, true> {};
template <>
struct Layout<FP8_128> : Scaled<128, 8> {};
template <>
struct Layout<FP8_32> : Scaled<32, 8> {};
template <>
struct Layout<NF4_64> : Scaled<64, 4> {};
template <>
struct Layout<NF4_32> : Scaled<32, 4> {};
template <>
struct Layout<FP4_64> : Scaled<64, 4> {};
template <>
struct Layout<FP4_32> : Scaled<32, 4> {};

template <Format T>
constexpr bool INT4 = T == INT4_128 || T == INT4_64 || T == INT4_32;
template <Format T>
constexpr bool INT8_ZERO = T == INT8_ZERO_128 || T == INT8_ZERO_32;
template <Format T>
constexpr bool FP8 = T == FP8_128 || T == FP8_32;
template <Format T>
constexpr bool NF4 = T == NF4_64 || T == NF4_32;
template <Format T>
constexpr bool FP4 = T == FP4_64 || T == FP4_32;
template <Format T>
constexpr bool DOUBLED = T == MXFP4 || T == E2M1_SHORT;
template <Format T>
constexpr bool E2M1 = T == E2M1_32 || T == E2M1_16;
template <Format T>
constexpr bool SCALED = INT4<T> || FP8<T> || NF4<T> || FP4<T> || E2M1<T> || INT8_ZERO<T> || T == INT8_128 || T == INT8_32;
template <Format T>
constexpr bool IQ2 = T == IQ2_XXS || T == IQ2_XS || T == IQ2_S;
template <Format T>
constexpr bool IQ1 = T == IQ1_S || T == IQ1_M;
// Integers that are signed bytes.
template <Format T>
constexpr bool SIGNED = Layout<T>::BITS == 8 || T == IQ4_NL || T == IQ4_XS || IQ2<T> || T == IQ3_XXS;

// What codes stand for: CODES of kernels/ops.py, kvalues_* of ggml-common.h, and the tables of kernels/reference/grids.py.
struct alignas(64) Table {
    float values[16];
};
constexpr Table NF4_TABLE{{-1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,
                           -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
                           0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f}};
constexpr Table FP4_TABLE{{0.0f, 0.0052083334885537624f, 0.6666666865348816f, 1.0f, 0.3333333432674408f, 0.5f, 0.1666666716337204f, 0.25f,
                           0.0f, -0.0052083334885537624f, -0.6666666865348816f, -1.0f, -0.3333333432674408f, -0.5f, -0.1666666716337204f, -0.25f}};
constexpr Table E2M1_TABLE{{0.0f, 0.5f, 1.0f, 1.5f, 2.0f, 3.0f, 4.0f, 6.0f, -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f}};
constexpr Table DOUBLED_TABLE{{0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12}};
constexpr Table IQ4_TABLE{{-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113}};
constexpr Table IQ2_TABLE{{8, 25, 43, 0, -8, -25, -43, 0}};
constexpr Table IQ3_XXS_TABLE{{4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}};
constexpr Table IQ3_S_TABLE{{1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}};
constexpr Table IQ1_TABLE{{-7, 1, 9, 0, -9, -1, 7, 0}};

// Null for formats without codes.
template <Format T>
constexpr const Table* table_of() {
    if constexpr (NF4<T>) return &NF4_TABLE;
    else if constexpr (FP4<T>) return &FP4_TABLE;
    else if constexpr (E2M1<T>) return &E2M1_TABLE;
    else if constexpr (DOUBLED<T>) return &DOUBLED_TABLE;
    else if constexpr (T == IQ4_NL || T == IQ4_XS) return &IQ4_TABLE;
    else if constexpr (IQ2<T>) return &IQ2_TABLE;
    else if constexpr (T == IQ3_XXS) return &IQ3_XXS_TABLE;
    else if constexpr (T == IQ3_S) return &IQ3_S_TABLE;
    else if constexpr (IQ1<T>) return &IQ1_TABLE;
    else return nullptr;
}
template <Format T>
constexpr bool CODED = table_of<T>() != nullptr;

// The integers of a table as bytes of a dot product, plus the zero point that it takes off.
struct alignas(16) Codes {
    uint8_t bytes[16];
};
template <Format T>
constexpr Codes codes_of() {
    const Table& table = E2M1<T> ? DOUBLED_TABLE : *table_of<T>();
    Codes codes{};
    for (int i = 0; i < 16; ++i) codes.bytes[i] = uint8_t(int(table.values[i]) + (!SIGNED<T> ? 16 : UNSIGNED_DOTS ? 128 : 0));
    return codes;
}
template <Format T>
constexpr Codes CODES = codes_of<T>();

// By which the scales of a grid are to be multiplied: unit of kernels/reference/grids.py.
template <Format T>
constexpr float UNIT = IQ2<T> || IQ1<T> ? 0.125f : T == IQ3_XXS ? 0.25f : 1.0f;

template <Format T>
constexpr int LOW = Layout<T>::BITS == 8 ? 512 : Layout<T>::BITS < 4 ? 128 : 256;
template <Format T>
constexpr int BLOCK_BYTES = Layout<T>::META + Layout<T>::HIGH + LOW<T>;
template <Format T>
constexpr int SUPER_BYTES = Layout<T>::HEAD + Layout<T>::NB * BLOCK_BYTES<T>;

// Values 4 G .. 4 G + 3 of all 16 rows: unsigned integers below 2^BITS, codes among them, or signed bytes.
template <Format T, int G>
PW_INLINE W group(const uint8_t* block) {
    using L = Layout<T>;
    const uint8_t* high = block + L::META;
    const uint8_t* low = high + L::HIGH;
    if constexpr (L::BITS == 8) {
        return w_load(low + 64 * G);
    } else if constexpr (L::BITS < 4) {
        const W bits = w_and(w_shift<-2 * (G % 4)>(w_load(low + 64 * (G / 4))), 3);
        if constexpr (L::BITS == 3) return w_or_and(bits, w_shift<2 - G>(w_load(high)), 4);
        return bits;
    } else {
        const W packed = w_load(low + 64 * (G / 2));
        const W bits = G % 2 ? w_and(w_shift<-4>(packed), 15) : w_and(packed, 15);
        if constexpr (L::BITS == 5) return w_or_and(bits, w_shift<4 - G>(w_load(high)), 16);
        if constexpr (L::BITS == 6) return w_or_and(bits, w_shift<4 - 2 * (G % 4)>(w_load(high + 64 * (G / 4))), 48);
        return bits;
    }
}

// The same as dot products take them: what codes stand for, and where bytes have no sign, signed ones plus 128, for which ZERO_128 makes up.
template <Format T, int G>
PW_INLINE W dot_group(const uint8_t* block) {
    const W w = group<T, G>(block);
    if constexpr (CODED<T>) return w_codes(w, CODES<T>.bytes);
    else return SIGNED<T> && UNSIGNED_DOTS ? w_xor(w, 0x80) : w;
}

// What multiplies the integers of a block: scale and minimum, of its first half where halves differ, and of its second half.
struct Scales {
    F first, second, minimum, second_minimum;
};

struct Head {
    F d, dmin;  // or the scale and minus the zero point, or the scales of both halves
};

template <Format T>
PW_INLINE Head read_head(const uint8_t* super) {
    if constexpr (INT4<T>) return {f_load((const float*)super), f_mul(f_all(-1.0f), f_u8(super + 64))};
    else if constexpr (INT8_ZERO<T>) return {f_load((const float*)super), f_bf16(super + 64)};
    else if constexpr (T == E2M1_16) return {f_load((const float*)super), f_load((const float*)super + 16)};
    else if constexpr (SCALED<T>) return {f_load((const float*)super), f_zero()};
    else if constexpr (Layout<T>::NB == 1) return {f_zero(), f_zero()};
    else if constexpr (Layout<T>::MINS) return {f_half(super), f_half(super + 32)};
    else if constexpr (UNIT<T> != 1.0f) return {f_mul(f_half(super), f_all(UNIT<T>)), f_zero()};
    else return {f_half(super), f_zero()};
}

// As the file means them: value = first * integer + minimum, integers without their zero point.
template <Format T>
PW_INLINE Scales read_scales(const Head& head, const uint8_t* block) {
    using L = Layout<T>;
    Scales scales{f_zero(), f_zero(), f_zero(), f_zero()};
    if constexpr (SCALED<T>) {
        scales.first = head.d;
        if constexpr (L::HALVES) scales.second = head.dmin;
        if constexpr (L::MINS) scales.minimum = f_mul(head.d, head.dmin);
    } else if constexpr (DOUBLED<T>) {
        scales.first = f_bf16(block);
    } else if constexpr (L::NB == 1) {
        scales.first = f_half(block);
        if constexpr (L::MINS) scales.minimum = f_half(block + 32);
    } else if constexpr (T == Q2_K) {
        const F dmin = f_mul(head.dmin, f_all(-1.0f));
        scales.first = f_mul(head.d, f_u4<false>(block));
        scales.second = f_mul(head.d, f_u4<false>(block + 16));
        scales.minimum = f_mul(dmin, f_u4<true>(block));
        scales.second_minimum = f_mul(dmin, f_u4<true>(block + 16));
    } else if constexpr (L::META == 0) {
        scales.first = head.d;
    } else if constexpr (!L::MINS) {
        scales.first = f_mul(head.d, f_s8(block));
        if constexpr (L::HALVES) scales.second = f_mul(head.d, f_s8(block + 16));
    } else {
        scales.first = f_mul(head.d, f_u8(block));
        scales.minimum = f_mul(f_mul(head.dmin, f_all(-1.0f)), f_u8(block + 16));
    }
    return scales;
}

// As the integer kernels use them.
template <Format T>
PW_INLINE Scales read_dot_scales(const Head& head, const uint8_t* block) {
    Scales scales = read_scales<T>(head, block);
    if constexpr (Layout<T>::MINS && Layout<T>::ZERO == ZERO_16) scales.minimum = f_fma(f_all(16.0f), scales.first, scales.minimum);
    if constexpr (E2M1<T>) scales.first = f_mul(scales.first, f_all(0.5f));
    if constexpr (E2M1<T> && Layout<T>::HALVES) scales.second = f_mul(scales.second, f_all(0.5f));
    return scales;
}

// Where in a panel a block, which is a multiple of NB, begins with its superblock.
template <Format T>
PW_INLINE const uint8_t* super_at(const uint8_t* panel, int64_t block) {
    return panel + block / Layout<T>::NB * SUPER_BYTES<T>;
}

}  // namespace pagewell::PW_ISA
