#include "linear_pack.h"

#include <cstring>
#include <stdexcept>

#include "memory.h"
#include "pool.h"

namespace pagewell {
namespace {

struct Source {
    const char* name;
    int n_values, n_bytes;  // of a block of the file, or of values that share a scale in the panel
    int bits;
    bool scaled = false;
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
    {"INT4", 128, 64, 4, true},
    {"INT4", 64, 32, 4, true},
    {"INT4", 32, 16, 4, true},
    {"INT8", 128, 128, 8, true},
    {"INT8", 32, 32, 8, true},
    {"F32", 1, 4, 32},
    {"F16", 1, 2, 16},
    {"BF16", 1, 2, 16},
    {"FP8", 128, 128, 8, true},
    {"FP8", 32, 32, 8, true},
    {"NF4", 64, 32, 4, true},
    {"NF4", 32, 16, 4, true},
};

// The first that fits: scales of long groups are repeated as seldom as can be.
Format format_of(const std::string& type, int64_t n_in, const Stored& rows) {
    const Source* known = nullptr;
    for (const Source& source : FORMATS) {
        if (type != source.name) continue;
        known = &source;
        if ((source.scaled ? rows.group : n_in) % source.n_values == 0) return Format(&source - FORMATS);
    }
    if (known == nullptr) throw std::invalid_argument(type + " is not a type of packed weights.");
    const char* what = known->scaled ? "A group of " : "A row of ";
    throw std::invalid_argument(what + type + " has whole blocks of " + std::to_string(known->n_values) + " values, not " +
                                std::to_string(known->scaled ? rows.group : n_in) + ".");
}

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
    } else {
        for (int j = 0; j < 4; ++j) {
            put_word(low + 64 * j + 4 * row, (q[2 * j] & 0x0f0f0f0f) | (q[2 * j + 1] & 0x0f0f0f0f) << 4);
        }
    }
    if constexpr (BITS == 5) {
        uint32_t bits = 0;
        for (int g = 0; g < 8; ++g) bits |= (q[g] >> 4 & 0x01010101) << g;
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

// Values whose scales lie apart, past the head in which these go.
template <Format T>
void put_scaled(const uint8_t* values, int row, uint8_t* out) {
    constexpr int HEAD = T < F32 && FORMATS[T].bits == 4 ? 80 : 64;
    out += HEAD;
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

// The scale, and of INT4 the zero point, of one row in the head before its values.
void put_head(const Stored& rows, int64_t at, bool with_zero, int row, uint8_t* out) {
    std::memcpy(out + 4 * row, rows.scales + at, 4);
    if (with_zero) out[64 + row] = rows.zeros ? rows.zeros[at] : 8;
}

template <int SIZE>
void put_float(const uint8_t* value, int row, uint8_t* out) {
    std::memcpy(out + SIZE * row, value, SIZE);
}

using Put = void (*)(const uint8_t* block, int row, uint8_t* out);
constexpr Put PUT[N_FORMATS] = {
    put_plain<Q4_0>,       put_plain<Q4_1>,      put_plain<Q5_0>,      put_plain<Q5_1>,      put_plain<Q8_0>,
    put_k<Q4_K>,           put_k<Q5_K>,          put_q6_k,             put_scaled<INT4_128>, put_scaled<INT4_64>,
    put_scaled<INT4_32>,   put_scaled<INT8_128>, put_scaled<INT8_32>,  put_float<4>,         put_float<2>,
    put_float<2>,          put_fp8<FP8_128>,     put_fp8<FP8_32>,      put_scaled<NF4_64>,   put_scaled<NF4_32>,
};

}  // namespace

const char* Packed::format_name() const {
    return FORMATS[format_].name;
}

Packed::Packed(const std::string& type, int64_t n_out, int64_t n_in, const Stored& rows)
    : format_(format_of(type, n_in, rows)), n_out_(n_out), n_in_(n_in) {
    const Source& source = FORMATS[format_];
    if (n_out < 1 || n_in < 1) throw std::invalid_argument("A weight has at least one row of one block.");
    if (source.scaled && (rows.scales == nullptr || rows.group < 1 || n_in % rows.group)) {
        throw std::invalid_argument(type + " needs scales for whole groups, which divide a row.");
    }
    const int64_t n_blocks = n_in / source.n_values;
    const int64_t block_bytes = PANEL_BYTES[format_];
    panel_bytes_ = n_blocks * block_bytes;
    data_ = weight_memory(size_t(n_bytes()));
    const Put put = PUT[format_];
    const bool with_zeros = type == "INT4";
    pool().run(n_panels(), [&](int64_t i) {
        uint8_t* out = data_.get() + i * panel_bytes_;
        const int n_rows = int(n_out - i * PANEL < PANEL ? n_out - i * PANEL : PANEL);
        if (n_rows < PANEL) std::memset(out, 0, size_t(panel_bytes_));
        for (int row = 0; row < n_rows; ++row) {
            const int64_t at = i * PANEL + row;
            const uint8_t* in = rows.data + at * rows.row_bytes;
            for (int64_t b = 0; b < n_blocks; ++b) {
                put(in + b * source.n_bytes, row, out + b * block_bytes);
                if (source.scaled) {
                    const int64_t group = at * (n_in / rows.group) + b * source.n_values / rows.group;
                    put_head(rows, group, with_zeros, row, out + b * block_bytes);
                }
            }
        }
    });
}

}  // namespace pagewell
