#include "kernels/cpu/linear.h"

#include <cmath>
#include <cstring>
#include <string>

#include "check.h"
#include "kernels/cpu/linear_pack.h"

namespace pagewell {
namespace {

// A quantised format of the file as plain loops read it: layouts are block_* of ggml-common.h.
struct Plain {
    const char* name;
    Format format;
    int n_values, n_bytes;
    void (*decode)(const uint8_t* block, float* out);
    std::vector<int> halves;  // where float16 scales lie
    int first, last;          // where the integers lie
};

float half(const uint8_t* p) {
    const uint32_t bits = p[0] | p[1] << 8, exponent = bits >> 10 & 31, mantissa = bits & 1023;
    const double size = exponent ? std::ldexp(1024.0 + mantissa, int(exponent) - 25) : std::ldexp(double(mantissa), -24);
    return float(bits >> 15 ? -size : size);
}

int nibble(const uint8_t* p, int i) {
    return i < 16 ? p[i] & 15 : p[i - 16] >> 4;
}

void q4_0(const uint8_t* b, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = half(b) * float(nibble(b + 2, i) - 8);
}

void q4_1(const uint8_t* b, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = half(b) * float(nibble(b + 4, i)) + half(b + 2);
}

int fifth(const uint8_t* p, int i) {
    return (p[i / 8] >> i % 8 & 1) << 4;
}

void q5_0(const uint8_t* b, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = half(b) * float((nibble(b + 6, i) | fifth(b + 2, i)) - 16);
}

void q5_1(const uint8_t* b, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = half(b) * float(nibble(b + 8, i) | fifth(b + 4, i)) + half(b + 2);
}

void q8_0(const uint8_t* b, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = half(b) * float(int8_t(b[2 + i]));
}

// Scale and minimum of sub-block j, as get_scale_min_k4 of ggml-quants.c has them.
void scale_k(const uint8_t* p, int j, int& scale, int& minimum) {
    scale = j < 4 ? p[j] & 63 : (p[j + 4] & 15) | (p[j - 4] >> 6) << 4;
    minimum = j < 4 ? p[j + 4] & 63 : p[j + 4] >> 4 | (p[j] >> 6) << 4;
}

void k_block(const uint8_t* b, const uint8_t* low, const uint8_t* high, float* out) {
    for (int i = 0; i < 256; ++i) {
        const int j = i / 32, at = i / 64 * 32 + i % 32;
        int scale, minimum, q = j % 2 ? low[at] >> 4 : low[at] & 15;
        if (high) q |= (high[i % 32] >> j & 1) << 4;
        scale_k(b + 4, j, scale, minimum);
        out[i] = half(b) * float(scale) * float(q) - half(b + 2) * float(minimum);
    }
}

void q4_k(const uint8_t* b, float* out) {
    k_block(b, b + 16, nullptr, out);
}

void q5_k(const uint8_t* b, float* out) {
    k_block(b, b + 48, b + 16, out);
}

void q6_k(const uint8_t* b, float* out) {
    for (int i = 0; i < 256; ++i) {
        const int part = i % 128 / 32, at = i / 128 * 64 + part % 2 * 32 + i % 32;
        const int low = part / 2 ? b[at] >> 4 : b[at] & 15, high = b[128 + i / 128 * 32 + i % 32] >> 2 * part & 3;
        out[i] = half(b + 208) * float(int8_t(b[192 + i / 16])) * float((low | high << 4) - 32);
    }
}

int pair(const uint8_t* p, int i) {
    return p[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3;
}

void q2_k(const uint8_t* b, float* out) {
    for (int i = 0; i < 256; ++i) {
        out[i] = half(b + 80) * float(b[i / 16] & 15) * float(pair(b + 16, i)) - half(b + 82) * float(b[i / 16] >> 4);
    }
}

void q3_k(const uint8_t* b, float* out) {
    for (int i = 0; i < 256; ++i) {
        const int j = i / 16, low = j < 8 ? b[96 + j] & 15 : b[88 + j] >> 4, high = b[104 + j % 4] >> 2 * (j / 4) & 3;
        const int q = pair(b + 32, i) | (b[i % 32] >> i / 32 & 1) << 2;
        out[i] = half(b + 108) * float((low | high << 4) - 32) * float(q - 4);
    }
}

constexpr int IQ4[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

void iq4_nl(const uint8_t* b, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = half(b) * float(IQ4[nibble(b + 2, i)]);
}

void iq4_xs(const uint8_t* b, float* out) {
    for (int i = 0; i < 256; ++i) {
        const int j = i / 32, low = b[4 + j / 2] >> 4 * (j % 2) & 15, high = (b[2] | b[3] << 8) >> 2 * j & 3;
        out[i] = half(b) * float((low | high << 4) - 32) * float(IQ4[nibble(b + 8 + 16 * j, i % 32)]);
    }
}

constexpr double E2M1[16] = {0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6};

void mxfp4(const uint8_t* b, float* out) {
    for (int i = 0; i < 32; ++i) out[i] = float(std::ldexp(E2M1[nibble(b + 1, i)], b[0] - 127));
}

// A byte is a fraction of 256 with five digits of base 3, of which the first are those of its bytes in turn.
void tq1_0(const uint8_t* b, float* out) {
    for (int i = 0; i < 256; ++i) {
        const int byte = i < 160 ? i % 32 : i < 240 ? 32 + i % 16 : 48 + i % 4, digit = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
        int fraction = b[byte];
        for (int j = 0; j < digit; ++j) fraction = fraction * 3 % 256;
        out[i] = half(b + 52) * float(fraction * 3 / 256 - 1);
    }
}

void tq2_0(const uint8_t* b, float* out) {
    for (int i = 0; i < 256; ++i) out[i] = half(b + 64) * float(pair(b, i) - 1);
}

// Codes of a grid: d, 16 scales, a byte for each code.
template <int N_BITS>
void coded(const uint8_t* b, const int (&values)[16], float unit, float* out) {
    for (int i = 0; i < 256; ++i) out[i] = half(b) * float(b[2 + i / 16]) * unit * float(values[b[18 + i] % (1 << N_BITS)]);
}

void iq2(const uint8_t* b, float* out) {
    coded<3>(b, {8, 25, 43, 0, -8, -25, -43, 0}, 0.125f, out);
}

void iq3_xxs(const uint8_t* b, float* out) {
    coded<4>(b, {4, 12, 20, 28, 36, 44, 52, 62, -4, -12, -20, -28, -36, -44, -52, -62}, 0.25f, out);
}

void iq3_s(const uint8_t* b, float* out) {
    coded<4>(b, {1, 3, 5, 7, 9, 11, 13, 15, -1, -3, -5, -7, -9, -11, -13, -15}, 1.0f, out);
}

void iq1(const uint8_t* b, float* out) {
    coded<3>(b, {-7, 1, 9, 0, -9, -1, 7, 0}, 0.125f, out);
}

const Plain FORMATS[] = {
    {"Q4_0", Q4_0, 32, 18, q4_0, {0}, 2, 18},          {"Q4_1", Q4_1, 32, 20, q4_1, {0, 2}, 4, 20},
    {"Q5_0", Q5_0, 32, 22, q5_0, {0}, 2, 22},          {"Q5_1", Q5_1, 32, 24, q5_1, {0, 2}, 4, 24},
    {"Q8_0", Q8_0, 32, 34, q8_0, {0}, 2, 34},          {"Q4_K", Q4_K, 256, 144, q4_k, {0, 2}, 16, 144},
    {"Q5_K", Q5_K, 256, 176, q5_k, {0, 2}, 16, 176},   {"Q6_K", Q6_K, 256, 210, q6_k, {208}, 0, 192},
    {"Q2_K", Q2_K, 256, 84, q2_k, {80, 82}, 0, 80},    {"Q3_K", Q3_K, 256, 110, q3_k, {108}, 0, 108},
    {"IQ4_NL", IQ4_NL, 32, 18, iq4_nl, {0}, 2, 18},    {"IQ4_XS", IQ4_XS, 256, 136, iq4_xs, {0}, 2, 136},
    {"MXFP4", MXFP4, 32, 17, mxfp4, {}, 1, 17},        {"TQ1_0", TQ1_0, 256, 54, tq1_0, {52}, 0, 52},
    {"TQ2_0", TQ2_0, 256, 66, tq2_0, {64}, 0, 64},     {"IQ2_XXS", IQ2_XXS, 256, 274, iq2, {0}, 18, 274},
    {"IQ2_XS", IQ2_XS, 256, 274, iq2, {0}, 18, 274},   {"IQ2_S", IQ2_S, 256, 274, iq2, {0}, 18, 274},
    {"IQ3_XXS", IQ3_XXS, 256, 274, iq3_xxs, {0}, 18, 274}, {"IQ3_S", IQ3_S, 256, 274, iq3_s, {0}, 18, 274},
    {"IQ1_S", IQ1_S, 256, 274, iq1, {0}, 18, 274},     {"IQ1_M", IQ1_M, 256, 274, iq1, {0}, 18, 274},
};

// Bytes of integers that are all the lowest, or all the highest, that there are.
uint8_t extreme(bool signed_bytes, bool highest) {
    return signed_bytes ? (highest ? 0x7f : 0x80) : (highest ? 0xff : 0x00);
}

constexpr int64_t N_OUT = 19, N_IN = 1280;  // a panel and a part of one; K is a chunk of 24 blocks and a part of one

// A format whose scales lie apart, in groups that it is packed in or repeats.
struct Scaled {
    const char* type;
    Format format;
    int64_t group;
    bool zeros;
    double (*value)(const uint8_t* row, int64_t i, int zero);
};

int half_byte(const uint8_t* row, int64_t i) {
    return i % 2 ? row[i / 2] >> 4 : row[i / 2] & 15;
}

double int4(const uint8_t* row, int64_t i, int zero) {
    return half_byte(row, i) - zero;
}

double int8(const uint8_t* row, int64_t i, int) {
    return int8_t(row[i]);
}

// E4M3: numbers below 2^-6 have no hidden bit.
double fp8(const uint8_t* row, int64_t i, int) {
    const int exponent = row[i] >> 3 & 15, mantissa = row[i] & 7;
    const double size = exponent ? std::ldexp(8.0 + mantissa, exponent - 10) : std::ldexp(double(mantissa), -9);
    return row[i] >> 7 ? -size : size;
}

double int8_zero(const uint8_t* row, int64_t i, int zero) {
    return int8_t(row[i]) - zero;
}

double e2m1(const uint8_t* row, int64_t i, int) {
    return E2M1[half_byte(row, i)];
}

// Numbers of two bits for the exponent and one more, those of exponent 0 apart, divided by the largest.
double fp4(const uint8_t* row, int64_t i, int) {
    constexpr double VALUES[8] = {0, 0.0625, 8, 12, 4, 6, 2, 3};
    const int q = half_byte(row, i);
    return (q < 8 ? 1 : -1) * VALUES[q % 8] / 12;
}

// The quantiles of a normal distribution as bitsandbytes has them, to six digits.
double nf4(const uint8_t* row, int64_t i, int) {
    constexpr double VALUES[16] = {-1.0,     -0.696193, -0.525073, -0.394917, -0.284441, -0.184773, -0.0910500, 0.0,
                                   0.0795803, 0.160930, 0.246112,  0.337915,  0.440710,  0.562617,  0.722957,   1.0};
    return VALUES[half_byte(row, i)];
}

const Scaled SCALED[] = {
    {"INT4", INT4_128, 128, true, int4}, {"INT4", INT4_128, 1280, false, int4}, {"INT4", INT4_64, 64, true, int4},
    {"INT4", INT4_64, 320, false, int4}, {"INT4", INT4_32, 32, true, int4},    {"INT4", INT4_32, 160, true, int4},
    {"INT8", INT8_128, 128, false, int8}, {"INT8", INT8_128, 1280, false, int8}, {"INT8", INT8_32, 64, false, int8},
    {"INT8", INT8_32, 32, false, int8},  {"FP8", FP8_128, 128, false, fp8},    {"FP8", FP8_128, 1280, false, fp8},
    {"FP8", FP8_32, 64, false, fp8},     {"NF4", NF4_64, 64, false, nf4},      {"NF4", NF4_64, 1280, false, nf4},
    {"NF4", NF4_32, 160, false, nf4},    {"FP4", FP4_64, 64, false, fp4},      {"FP4", FP4_32, 160, false, fp4},
    {"INT8", INT8_ZERO_128, 128, true, int8_zero}, {"INT8", INT8_ZERO_128, 1280, true, int8_zero}, {"INT8", INT8_ZERO_32, 32, true, int8_zero},
    {"E2M1", E2M1_32, 32, false, e2m1},  {"E2M1", E2M1_32, 320, false, e2m1},  {"E2M1", E2M1_16, 16, false, e2m1},
    {"E2M1", E2M1_16, 80, false, e2m1},  {"E2M1", E2M1_SHORT, 32, false, e2m1}, {"E2M1", E2M1_SHORT, 160, false, e2m1},
};

std::vector<uint8_t> random_blocks(const Plain& plain) {
    std::minstd_rand random(7);
    std::vector<uint8_t> blocks(size_t(N_OUT * N_IN / plain.n_values * plain.n_bytes));
    for (auto& byte : blocks) byte = uint8_t(random() >> 8);
    for (size_t at = 0; at < blocks.size(); at += size_t(plain.n_bytes)) {
        for (const int offset : plain.halves) {  // between 2^-7 and 2^-5, of either sign
            const uint32_t bits = (random() >> 8 & 0x83ff) | (8 + (random() >> 8 & 1)) << 10;
            blocks[at + size_t(offset)] = uint8_t(bits);
            blocks[at + size_t(offset) + 1] = uint8_t(bits >> 8);
        }
        // Scales of a grid are odd numbers below 32, and one for two sixteens where a file has one for 32 values.
        for (int i = 2; plain.n_bytes == 274 && i < 18; ++i) {
            const bool halves = plain.format == IQ2_XS || plain.format == IQ2_S || plain.format == IQ1_M;
            blocks[at + size_t(i)] = halves || i % 2 == 0 ? blocks[at + size_t(i)] % 32 | 1 : blocks[at + size_t(i) - 1];
        }
        if (plain.format == MXFP4) blocks[at] = uint8_t(118 + (random() >> 8) % 8);
    }
    return blocks;
}

// x quantised by the level's kernel, with the memory that it needs.
struct Activations {
    std::vector<int8_t> q;
    std::vector<float> d, s, halves;
    std::vector<int32_t> seeds;
    Quantized quantized;

    Activations(const Values& x, int64_t n_rows) {
        const int64_t group = group_of(n_rows), rows = (n_rows + group - 1) / group * group, blocks = N_IN / BLOCK;
        q.resize(size_t(rows * N_IN));
        d.resize(size_t(rows * blocks));
        s.resize(size_t(rows * blocks));
        halves.resize(size_t(rows * blocks * 2));
        seeds.resize(size_t(N_ZEROS * rows * blocks * 2));
        quantized = {q.data(), d.data(), s.data(), halves.data(), seeds.data(), blocks, group, rows, (2u << N_ZEROS) - 1};
        for (int64_t row = 0; row < n_rows; ++row) linear_kernels().quantize(x.data() + row * N_IN, quantized, row);
    }

    double step(int64_t row, int64_t i) const { return d[at(row, i)]; }
    double value(int64_t row, int64_t i) const { return double(q[at(row, i) * BLOCK + size_t(i % BLOCK)]) * step(row, i); }

  private:
    size_t at(int64_t row, int64_t i) const { return size_t(quantized.at(row) + i / BLOCK * quantized.group); }
};

// Rows and products of a packed weight against its values [N_OUT, N_IN].
void compare(Check& check, const std::string& name, const Packed& packed, const Values& weight) {
    const Format format = packed.format();
    for (int64_t row = 0; row < N_OUT; ++row) {
        check.about(name + ", row " + std::to_string(row));
        Values out(N_IN);
        const float scale = row % 2 ? 3.5f : 1.0f;
        linear_kernels().row[format](packed.panel(row / PANEL), int(row % PANEL), N_IN, scale, out.data());
        std::vector<double> wanted(weight.data() + row * N_IN, weight.data() + (row + 1) * N_IN);
        for (double& value : wanted) value *= scale;
        check.close("row", out.data(), wanted.data(), N_IN, 1e-6 * scale);
        check.that(out.kept(), "nothing is written past the end");
    }
    // Sums of 768 terms up to 100 cancel; float32 leaves a thousandth of one.
    for (const int64_t n_rows : {1, 2, 3, 4, 7, 8, 9, 16, 21, 40}) {
        check.about(name + ", " + std::to_string(n_rows) + " rows");
        const auto x = Values::random(n_rows * N_IN, 2, uint32_t(n_rows));
        const Activations activations(x, n_rows);
        for (int64_t panel = 0; panel < packed.n_panels(); ++panel) {
            alignas(64) float fast[MOST_ROWS * PANEL], exact[MOST_ROWS * PANEL];
            const auto product = linear_kernels().panel[format];
            check.that((product == nullptr) == packed.is_float(), "integers are multiplied as such");
            if (product) product(packed.panel(panel), activations.quantized, 0, n_rows, fast);
            linear_kernels().panel_exact[format](packed.panel(panel), x.data(), N_IN, N_IN, n_rows, exact);
            for (int64_t m = 0; m < n_rows; ++m) {
                for (int64_t row = panel * PANEL; row < std::min(N_OUT, (panel + 1) * PANEL); ++row) {
                    double quantised = 0, whole = 0;
                    for (int64_t i = 0; i < N_IN; ++i) {
                        quantised += activations.value(m, i) * weight[row * N_IN + i];
                        whole += double(x[m * N_IN + i]) * weight[row * N_IN + i];
                    }
                    if (product) check.close("product", fast + m * PANEL + row % PANEL, &quantised, 1, 1e-3);
                    check.close("exact product", exact + m * PANEL + row % PANEL, &whole, 1, 1e-3);
                }
            }
        }
    }
}

int64_t row_bytes_of(const Scaled& scaled) {
    return scaled.value == int8 || scaled.value == int8_zero || scaled.value == fp8 ? N_IN : N_IN / 2;
}

// data with random scales and zero points, and its values.
struct Apart {
    Values weight{N_OUT * N_IN};
    Packed packed;

    Apart(const Scaled& scaled, const std::vector<uint8_t>& data) : packed(pack(scaled, data, weight)) {}

  private:
    static Packed pack(const Scaled& scaled, const std::vector<uint8_t>& data, Values& weight) {
        std::minstd_rand random(9);
        const int64_t n_groups = N_IN / scaled.group;
        std::vector<uint8_t> zeros(size_t(N_OUT * n_groups), 8);
        std::vector<int16_t> wide_zeros(zeros.size());
        for (auto& zero : zeros) zero = scaled.zeros ? uint8_t((random() >> 8) % 17) : 8;
        for (auto& zero : wide_zeros) zero = int16_t(int((random() >> 8) % 257) - 128);
        const bool wide = scaled.value == int8_zero;
        auto scales = Values::random(N_OUT * n_groups, scaled.value == nf4 || scaled.value == fp4 ? 1.0f : 0.0625f, 10);
        if (scaled.format == E2M1_SHORT) {
            for (int64_t i = 0; i < scales.size(); ++i) scales[i] = std::ldexp(i % 2 ? 1.0f : -1.5f, -int((random() >> 8) % 8));
        }
        for (int64_t i = 0; i < N_OUT * N_IN; ++i) {
            const int64_t row = i / N_IN, group = row * n_groups + i % N_IN / scaled.group;
            const int zero = wide ? wide_zeros[size_t(group)] : zeros[size_t(group)];
            weight[i] = float(scaled.value(data.data() + row * row_bytes_of(scaled), i % N_IN, zero) * scales[group]);
        }
        const void* given = wide ? static_cast<const void*>(wide_zeros.data()) : zeros.data();
        return Packed(scaled.type, N_OUT, N_IN, {data.data(), row_bytes_of(scaled), scales.data(), scaled.zeros ? given : nullptr, scaled.group});
    }
};

// Products of integers alone for x of +1 and -1, which are quantised to 127 and -127: sums as large as they come.
void compare_extremes(Check& check, const std::string& name, const Packed& packed, const Values& weight) {
    for (const int period : {0, 1, 2, 4, 16}) {
        for (const int64_t n_rows : {1, 9}) {
            check.about(name + ", " + std::to_string(n_rows) + " rows, signs change every " + std::to_string(period));
            Values x(n_rows * N_IN, 1.0f);
            for (int64_t i = 0; i < x.size(); ++i) x[i] = (i / N_IN + (period ? i % N_IN / period : 0)) % 2 ? -1.0f : 1.0f;
            const Activations activations(x, n_rows);
            alignas(64) float acc[MOST_ROWS * PANEL];
            for (int64_t panel = 0; panel < packed.n_panels(); ++panel) {
                linear_kernels().panel[packed.format()](packed.panel(panel), activations.quantized, 0, n_rows, acc);
                for (int64_t m = 0; m < n_rows; ++m) {
                    for (int64_t row = panel * PANEL; row < std::min(N_OUT, (panel + 1) * PANEL); ++row) {
                        double wanted = 0;
                        for (int64_t i = 0; i < N_IN; ++i) wanted += double(x[m * N_IN + i]) * weight[row * N_IN + i];
                        check.close("product", acc + m * PANEL + row % PANEL, &wanted, 1, 1e-3);
                    }
                }
            }
        }
    }
}

}  // namespace

PW_TEST(quantize) {
    const auto x = Values::random(3 * N_IN, 5, 11);
    const Activations activations(x, 3);
    for (int64_t i = 0; i < 3 * N_IN; ++i) {
        check.that(std::fabs(activations.value(i / N_IN, i % N_IN) - x[i]) <= 0.51 * activations.step(i / N_IN, i % N_IN), "half a step");
    }
}

PW_TEST(products) {
    for (const Plain& plain : FORMATS) {
        const auto blocks = random_blocks(plain);
        const Packed packed(plain.name, N_OUT, N_IN, {blocks.data(), N_IN / plain.n_values * plain.n_bytes});
        check.that(packed.format() == plain.format, "the format has its name");
        Values weight(N_OUT * N_IN);
        for (int64_t i = 0; i < N_OUT * N_IN / plain.n_values; ++i) {
            plain.decode(blocks.data() + i * plain.n_bytes, weight.data() + i * plain.n_values);
        }
        compare(check, plain.name, packed, weight);
    }
}

PW_TEST(products_of_extremes) {
    for (const Plain& plain : FORMATS) {
        for (const bool highest : {false, true}) {
            auto blocks = random_blocks(plain);
            for (size_t at = 0; at < blocks.size(); at += size_t(plain.n_bytes)) {
                for (int i = plain.first; i < plain.last; ++i) blocks[at + size_t(i)] = extreme(plain.format == Q8_0, highest);
            }
            const Packed packed(plain.name, N_OUT, N_IN, {blocks.data(), N_IN / plain.n_values * plain.n_bytes});
            Values weight(N_OUT * N_IN);
            for (int64_t i = 0; i < N_OUT * N_IN / plain.n_values; ++i) {
                plain.decode(blocks.data() + i * plain.n_bytes, weight.data() + i * plain.n_values);
            }
            compare_extremes(check, std::string(plain.name) + (highest ? ", highest" : ", lowest"), packed, weight);
        }
    }
    for (const Scaled& scaled : SCALED) {
        if (scaled.format >= F32) continue;
        for (const bool highest : {false, true}) {
            const bool is_bytes = row_bytes_of(scaled) == N_IN;
            const std::vector<uint8_t> data(size_t(N_OUT * row_bytes_of(scaled)), extreme(is_bytes, highest));
            const Apart apart(scaled, data);
            compare_extremes(check, std::string(scaled.type) + (highest ? ", highest" : ", lowest"), apart.packed, apart.weight);
        }
    }
}

PW_TEST(products_with_scales_apart) {
    for (const Scaled& scaled : SCALED) {
        std::minstd_rand random(9);
        std::vector<uint8_t> data(size_t(N_OUT * row_bytes_of(scaled)));
        for (auto& byte : data) byte = uint8_t(random() >> 8);
        for (auto& byte : data) byte = scaled.value == fp8 && (byte & 127) == 127 ? 0 : byte;  // no NaN
        const Apart apart(scaled, data);
        check.that(apart.packed.format() == scaled.format, "scales are repeated as seldom as can be");
        compare(check, std::string(scaled.type) + " in groups of " + std::to_string(scaled.group), apart.packed, apart.weight);
    }
}

}  // namespace pagewell
