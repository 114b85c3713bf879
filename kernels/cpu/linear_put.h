// Where the values of the files' blocks go in a panel. Included by linear_pack.cpp only.
#pragma once

#include <cstring>

#include "linear_pack.h"

namespace pagewell {
namespace {

// What a panel has before the values whose scales lie apart, for its 16 rows; the number is its bytes.
enum Head : int {
    NO_HEAD = 0,
    HALF_SCALE = 32,      // half of the scale, a bfloat16
    SCALE = 64,           // float32
    SCALE_AND_BYTE = 80,  // and the zero point
    SCALE_AND_ZERO = 96,  // and the zero point with its sign changed, a bfloat16, which holds whole numbers up to 256
    TWO_SCALES = 128,     // of the halves of a block
};

struct Source {
    const char* name;
    int n_values, n_bytes;  // of a block of the file, or of values that share a head in the panel
    int bits;
    Head head = NO_HEAD;
    int group = n_values;  // of what a group is a multiple
};

constexpr Source FORMATS[N_FORMATS] = {
    {"Q4_0", 32, 18, 4},
    {"Q4_1", 32, 20, 4},
    {"Q5_0", 32, 22, 5},
    {"Q5_1", 32, 24, 5},
    {"Q8_0", 32, 34, 8},
    {"Q4_K", 256, 144, 4},
    {"Q5_K", 256, 176, 5},
    {"Q6_K", 256, 210, 6},
    {"Q2_K", 256, 84, 2},
    {"Q3_K", 256, 110, 3},
    {"IQ4_NL", 32, 18, 4},
    {"IQ4_XS", 256, 136, 4},
    {"MXFP4", 32, 17, 4},
    {"TQ1_0", 256, 54, 2},
    {"TQ2_0", 256, 66, 2},
    {"IQ2_XXS", 256, 274, 3},
    {"IQ2_XS", 256, 274, 3},
    {"IQ2_S", 256, 274, 3},
    {"IQ3_XXS", 256, 274, 4},
    {"IQ3_S", 256, 274, 4},
    {"IQ1_S", 256, 274, 3},
    {"IQ1_M", 256, 274, 3},
    {"INT4", 128, 64, 4, SCALE_AND_BYTE},
    {"INT4", 64, 32, 4, SCALE_AND_BYTE},
    {"INT4", 32, 16, 4, SCALE_AND_BYTE},
    {"INT8", 128, 128, 8, SCALE},
    {"INT8", 32, 32, 8, SCALE},
    {"INT8", 128, 128, 8, SCALE_AND_ZERO},
    {"INT8", 32, 32, 8, SCALE_AND_ZERO},
    {"E2M1", 32, 16, 4, HALF_SCALE},
    {"E2M1", 32, 16, 4, SCALE},
    {"E2M1", 32, 16, 4, TWO_SCALES, 16},
    {"F32", 1, 4, 32},
    {"F16", 1, 2, 16},
    {"BF16", 1, 2, 16},
    {"FP8", 128, 128, 8, SCALE},
    {"FP8", 32, 32, 8, SCALE},
    {"NF4", 64, 32, 4, SCALE},
    {"NF4", 32, 16, 4, SCALE},
    {"FP4", 64, 32, 4, SCALE},
    {"FP4", 32, 16, 4, SCALE},
};

uint32_t word(const uint8_t* p) {
    uint32_t w;
    std::memcpy(&w, p, 4);
    return w;
}

void put_word(uint8_t* p, uint32_t w) {
    std::memcpy(p, &w, 4);
}

// 32 values of one row, 4 to a word, go to their places among the 16 rows: low bits, and high bits if there are any.
template <int BITS>
void put_values(const uint32_t (&q)[8], int row, uint8_t* high, uint8_t* low) {
    if constexpr (BITS == 8) {
        for (int g = 0; g < 8; ++g) put_word(low + 64 * g + 4 * row, q[g]);
    } else if constexpr (BITS < 4) {
        for (int j = 0; j < 2; ++j) {
            uint32_t pairs = 0;
            for (int g = 0; g < 4; ++g) pairs |= (q[4 * j + g] & 0x03030303) << 2 * g;
            put_word(low + 64 * j + 4 * row, pairs);
        }
    } else {
        for (int j = 0; j < 4; ++j) {
            put_word(low + 64 * j + 4 * row, (q[2 * j] & 0x0f0f0f0f) | (q[2 * j + 1] & 0x0f0f0f0f) << 4);
        }
    }
    if constexpr (BITS == 3 || BITS == 5) {
        uint32_t bits = 0;
        for (int g = 0; g < 8; ++g) bits |= (q[g] >> (BITS - 1) & 0x01010101) << g;
        put_word(high + 4 * row, bits);
    }
    if constexpr (BITS == 6) {
        for (int h = 0; h < 2; ++h) {
            uint32_t bits = 0;
            for (int g = 0; g < 4; ++g) bits |= (q[4 * h + g] >> 4 & 0x03030303) << 2 * g;
            put_word(high + 64 * h + 4 * row, bits);
        }
    }
}

// Sixteen bytes of nibbles: low ones are values 0 .. 15, high ones 16 .. 31.
void nibbles(const uint8_t* p, uint32_t (&q)[8]) {
    for (int g = 0; g < 4; ++g) {
        q[g] = word(p + 4 * g) & 0x0f0f0f0f;
        q[4 + g] = word(p + 4 * g) >> 4 & 0x0f0f0f0f;
    }
}

// Bit i of `bits` becomes bit 4 of value i.
void fifth_bits(uint32_t bits, uint32_t (&q)[8]) {
    for (int g = 0; g < 8; ++g) {
        for (int i = 0; i < 4; ++i) q[g] |= (bits >> (4 * g + i) & 1) << (8 * i + 4);
    }
}

template <Format T>
void put_plain(const uint8_t* block, int row, uint8_t* out) {
    constexpr int BITS = FORMATS[T].bits;
    constexpr bool MINS = T == Q4_1 || T == Q5_1;
    constexpr int META = MINS ? 64 : 32, HIGH = BITS == 5 ? 64 : 0;
    std::memcpy(out + 2 * row, block, 2);
    if constexpr (MINS) std::memcpy(out + 32 + 2 * row, block + 2, 2);
    const uint8_t* p = block + (MINS ? 4 : 2);
    uint32_t q[8];
    if constexpr (BITS == 8) {
        for (int g = 0; g < 8; ++g) q[g] = word(p + 4 * g);
    } else if constexpr (BITS == 5) {
        nibbles(p + 4, q);
        fifth_bits(word(p), q);
    } else {
        nibbles(p, q);
    }
    put_values<BITS>(q, row, out + META, out + META + HIGH);
}

// Q4_K and Q5_K: scales and minimums of 6 bits, packed as get_scale_min_k4 of ggml-quants.c unpacks them.
template <Format T>
void put_k(const uint8_t* block, int row, uint8_t* out) {
    constexpr int BITS = FORMATS[T].bits, HIGH = BITS == 5 ? 64 : 0;
    const uint8_t *scales = block + 4, *fifth = block + 16, *low = block + (BITS == 5 ? 48 : 16);
    std::memcpy(out + 2 * row, block, 2);
    std::memcpy(out + 32 + 2 * row, block + 2, 2);
    out += 64;
    for (int b = 0; b < 8; ++b, out += 32 + HIGH + 256) {
        out[row] = b < 4 ? scales[b] & 63 : (scales[b + 4] & 15) | (scales[b - 4] >> 6) << 4;
        out[16 + row] = b < 4 ? scales[b + 4] & 63 : scales[b + 4] >> 4 | (scales[b] >> 6) << 4;
        uint32_t q[8];
        for (int g = 0; g < 8; ++g) {
            q[g] = word(low + 32 * (b / 2) + 4 * g) >> (b % 2 ? 4 : 0) & 0x0f0f0f0f;
            if constexpr (BITS == 5) q[g] |= (word(fifth + 4 * g) >> b & 0x01010101) << 4;
        }
        put_values<BITS>(q, row, out + 32, out + 32 + HIGH);
    }
}

void put_q6_k(const uint8_t* block, int row, uint8_t* out) {
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    std::memcpy(out + 2 * row, block + 208, 2);
    out += 32;
    for (int b = 0; b < 8; ++b, out += 416) {
        out[row] = scales[2 * b];
        out[16 + row] = scales[2 * b + 1];
        const int half = b / 4, part = b % 4;
        uint32_t q[8];
        for (int g = 0; g < 8; ++g) {
            q[g] = word(low + 64 * half + 32 * (part % 2) + 4 * g) >> (part / 2 ? 4 : 0) & 0x0f0f0f0f;
            q[g] |= (word(high + 32 * half + 4 * g) >> 2 * part & 0x03030303) << 4;
        }
        put_values<6>(q, row, out + 32, out + 32 + 128);
    }
}

// Block b of numbers of two bits: four to a byte, 32 apart.
void pairs(const uint8_t* p, int b, uint32_t (&q)[8]) {
    for (int g = 0; g < 8; ++g) q[g] = word(p + 32 * (b / 4) + 4 * g) >> 2 * (b % 4) & 0x03030303;
}

void put_q2_k(const uint8_t* block, int row, uint8_t* out) {
    std::memcpy(out + 2 * row, block + 80, 2);
    std::memcpy(out + 32 + 2 * row, block + 82, 2);
    out += 64;
    for (int b = 0; b < 8; ++b, out += 32 + 128) {
        out[row] = block[2 * b];
        out[16 + row] = block[2 * b + 1];
        uint32_t q[8];
        pairs(block + 16, b, q);
        put_values<2>(q, row, nullptr, out + 32);
    }
}

// Scales of 6 bits: the low four of 16 in 8 bytes, then the high two.
void put_q3_k(const uint8_t* block, int row, uint8_t* out) {
    const uint8_t *third = block, *scales = block + 96;
    std::memcpy(out + 2 * row, block + 108, 2);
    out += 32;
    for (int b = 0; b < 8; ++b, out += 32 + 64 + 128) {
        for (int i = 2 * b; i < 2 * b + 2; ++i) {
            const int low = scales[i % 8] >> (i < 8 ? 0 : 4) & 15, high = scales[8 + i % 4] >> 2 * (i / 4) & 3;
            out[16 * (i % 2) + row] = uint8_t((low | high << 4) - 32);
        }
        uint32_t q[8];
        pairs(block + 32, b, q);
        for (int g = 0; g < 8; ++g) q[g] |= (word(third + 4 * g) >> b & 0x01010101) << 2;
        put_values<3>(q, row, out + 32, out + 32 + 64);
    }
}

void put_iq4_xs(const uint8_t* block, int row, uint8_t* out) {
    std::memcpy(out + 2 * row, block, 2);
    out += 32;
    const int highs = block[2] | block[3] << 8;
    for (int b = 0; b < 8; ++b, out += 16 + 256) {
        const int low = block[4 + b / 2] >> 4 * (b % 2) & 15, high = highs >> 2 * b & 3;
        out[row] = uint8_t((low | high << 4) - 32);
        uint32_t q[8];
        nibbles(block + 8 + 16 * b, q);
        put_values<4>(q, row, nullptr, out + 16);
    }
}

// Half of the scale that an E8M0 means, as ggml_e8m0_to_fp32_half of ggml-impl.h has it: a bfloat16.
void put_mxfp4(const uint8_t* block, int row, uint8_t* out) {
    const int e = block[0], bits = e < 2 ? 0x20 << e : (e - 1) << 7;
    out[2 * row] = uint8_t(bits);
    out[2 * row + 1] = uint8_t(bits >> 8);
    uint32_t q[8];
    nibbles(block + 1, q);
    put_values<4>(q, row, nullptr, out + 32);
}

// values of 256: numbers of two bits, a byte for each.
void put_ternary(const uint8_t* values, int row, uint8_t* out) {
    out += 32;
    for (int b = 0; b < 8; ++b, out += 128) {
        uint32_t q[8];
        for (int g = 0; g < 8; ++g) q[g] = word(values + 32 * b + 4 * g);
        put_values<2>(q, row, nullptr, out);
    }
}

// Digits of base 3: five to a byte, the first of all bytes before the second of any, in 32 bytes and then in 16; four in the last 4 bytes.
void put_tq1_0(const uint8_t* block, int row, uint8_t* out) {
    constexpr uint8_t POWERS[] = {1, 3, 9, 27, 81};
    uint8_t values[256], *value = values;
    const auto digits = [&](const uint8_t* bytes, int n_bytes, int n_digits) {
        for (int digit = 0; digit < n_digits; ++digit) {
            for (int i = 0; i < n_bytes; ++i) *value++ = uint8_t(uint8_t(bytes[i] * POWERS[digit]) * 3 >> 8);
        }
    };
    digits(block, 32, 5);
    digits(block + 32, 16, 5);
    digits(block + 48, 4, 4);
    std::memcpy(out + 2 * row, block + 52, 2);
    put_ternary(values, row, out);
}

void put_tq2_0(const uint8_t* block, int row, uint8_t* out) {
    uint8_t values[256];
    for (int i = 0; i < 256; ++i) values[i] = block[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
    std::memcpy(out + 2 * row, block + 64, 2);
    put_ternary(values, row, out);
}

// Codes of a grid, as kernels/cpu/linear.py takes them out of a file's block: d, a scale for each 16 values, of 256 values a byte each.
template <Format T>
void put_codes(const uint8_t* block, int row, uint8_t* out) {
    constexpr bool HALVES = T == IQ2_XS || T == IQ2_S || T == IQ1_M;
    constexpr int BITS = FORMATS[T].bits, META = HALVES ? 32 : 16, HIGH = BITS == 3 ? 64 : 0;
    const uint8_t *scales = block + 2, *codes = block + 18;
    std::memcpy(out + 2 * row, block, 2);
    out += 32;
    for (int b = 0; b < 8; ++b, out += META + HIGH + (BITS == 3 ? 128 : 256)) {
        out[row] = scales[2 * b];
        if constexpr (HALVES) out[16 + row] = scales[2 * b + 1];
        uint32_t q[8];
        for (int g = 0; g < 8; ++g) q[g] = word(codes + 32 * b + 4 * g);
        put_values<BITS>(q, row, out + META, out + META + HIGH);
    }
}

// Values whose scales lie apart, past the head in which these go.
template <Format T>
void put_scaled(const uint8_t* values, int row, uint8_t* out) {
    out += FORMATS[T].head;
    for (int i = 0; i < FORMATS[T].n_values / BLOCK; ++i) {
        uint32_t q[8];
        if constexpr (FORMATS[T].bits == 8) {
            for (int g = 0; g < 8; ++g) q[g] = word(values + 4 * g);
            put_values<8>(q, row, nullptr, out);
            values += 32;
            out += 512;
        } else {
            for (int g = 0; g < 8; ++g) {
                const uint32_t two = values[2 * g] | uint32_t(values[2 * g + 1]) << 16;
                q[g] = (two & 0x000f000f) | (two & 0x00f000f0) << 4;
            }
            put_values<4>(q, row, nullptr, out);
            values += 16;
            out += 256;
        }
    }
}

// In the order of K, as floats are: they are not multiplied four at a time.
template <Format T>
void put_fp8(const uint8_t* values, int row, uint8_t* out) {
    for (int i = 0; i < FORMATS[T].n_values; ++i) out[64 + PANEL * i + row] = values[i];
}

uint16_t upper_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return uint16_t(bits >> 16);
}

// The scales, and the zero point, of n_values from `column` on of one row, in the head before them.
void put_head(const Stored& rows, Head head, int64_t first_group, int64_t column, int row, uint8_t* out) {
    const int64_t at = first_group + column / rows.group;
    if (head == HALF_SCALE) {
        const uint16_t half = upper_half(rows.scales[at] * 0.5f);
        std::memcpy(out + 2 * row, &half, 2);
        return;
    }
    std::memcpy(out + 4 * row, rows.scales + at, 4);
    if (head == TWO_SCALES) std::memcpy(out + 64 + 4 * row, rows.scales + first_group + (column + BLOCK / 2) / rows.group, 4);
    if (head == SCALE_AND_BYTE) out[64 + row] = rows.zeros ? static_cast<const uint8_t*>(rows.zeros)[at] : 8;
    if (head == SCALE_AND_ZERO) {
        const uint16_t zero = upper_half(-float(static_cast<const int16_t*>(rows.zeros)[at]));
        std::memcpy(out + 64 + 2 * row, &zero, 2);
    }
}

template <int SIZE>
void put_float(const uint8_t* value, int row, uint8_t* out) {
    std::memcpy(out + SIZE * row, value, SIZE);
}

using Put = void (*)(const uint8_t* block, int row, uint8_t* out);
constexpr Put PUT[N_FORMATS] = {
    put_plain<Q4_0>,           put_plain<Q4_1>,          put_plain<Q5_0>,        put_plain<Q5_1>,      put_plain<Q8_0>,
    put_k<Q4_K>,               put_k<Q5_K>,              put_q6_k,               put_q2_k,             put_q3_k,
    put_plain<IQ4_NL>,         put_iq4_xs,               put_mxfp4,              put_tq1_0,            put_tq2_0,
    put_codes<IQ2_XXS>,        put_codes<IQ2_XS>,        put_codes<IQ2_S>,       put_codes<IQ3_XXS>,   put_codes<IQ3_S>,
    put_codes<IQ1_S>,          put_codes<IQ1_M>,
    put_scaled<INT4_128>,      put_scaled<INT4_64>,      put_scaled<INT4_32>,    put_scaled<INT8_128>, put_scaled<INT8_32>,
    put_scaled<INT8_ZERO_128>, put_scaled<INT8_ZERO_32>, put_scaled<E2M1_SHORT>, put_scaled<E2M1_32>,  put_scaled<E2M1_16>,
    put_float<4>,              put_float<2>,             put_float<2>,           put_fp8<FP8_128>,     put_fp8<FP8_32>,
    put_scaled<NF4_64>,        put_scaled<NF4_32>,       put_scaled<FP4_64>,     put_scaled<FP4_32>,
};

}  // namespace
}  // namespace pagewell
