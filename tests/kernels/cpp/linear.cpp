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

const Plain FORMATS[] = {
    {"Q4_0", Q4_0, 32, 18, q4_0, {0}},        {"Q4_1", Q4_1, 32, 20, q4_1, {0, 2}},     {"Q5_0", Q5_0, 32, 22, q5_0, {0}},
    {"Q5_1", Q5_1, 32, 24, q5_1, {0, 2}},     {"Q8_0", Q8_0, 32, 34, q8_0, {0}},        {"Q4_K", Q4_K, 256, 144, q4_k, {0, 2}},
    {"Q5_K", Q5_K, 256, 176, q5_k, {0, 2}},   {"Q6_K", Q6_K, 256, 210, q6_k, {208}},
};

constexpr int64_t N_OUT = 19, N_IN = 768;  // a panel and a part of one; K is no whole number of chunks

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
    }
    return blocks;
}

// x quantised by the level's kernel, with the memory that it needs.
struct Activations {
    std::vector<int8_t> q;
    std::vector<float> d, s;
    std::vector<int32_t> seeds;
    Quantized quantized;

    Activations(const Values& x, int64_t n_rows) {
        const int64_t group = group_of(n_rows), rows = (n_rows + group - 1) / group * group, blocks = N_IN / BLOCK;
        q.resize(size_t(rows * N_IN));
        d.resize(size_t(rows * blocks));
        s.resize(size_t(rows * blocks));
        seeds.resize(size_t(N_ZEROS * rows * blocks * 2));
        quantized = {q.data(), d.data(), s.data(), seeds.data(), blocks, group, rows, (1u << N_ZEROS) - 1};
        for (int64_t row = 0; row < n_rows; ++row) linear_kernels().quantize(x.data() + row * N_IN, quantized, row);
    }

    double step(int64_t row, int64_t i) const { return d[at(row, i)]; }
    double value(int64_t row, int64_t i) const { return double(q[at(row, i) * BLOCK + size_t(i % BLOCK)]) * step(row, i); }

  private:
    size_t at(int64_t row, int64_t i) const { return size_t(quantized.at(row) + i / BLOCK * quantized.group); }
};

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
        const int64_t row_bytes = N_IN / plain.n_values * plain.n_bytes;
        const Packed packed(plain.name, N_OUT, N_IN, blocks.data(), row_bytes);
        Values weight(N_OUT * N_IN);
        for (int64_t i = 0; i < N_OUT * N_IN / plain.n_values; ++i) {
            plain.decode(blocks.data() + i * plain.n_bytes, weight.data() + i * plain.n_values);
        }
        for (int64_t row = 0; row < N_OUT; ++row) {
            check.about(std::string(plain.name) + ", row " + std::to_string(row));
            Values out(N_IN);
            linear_kernels().row[plain.format](packed.panel(row / PANEL), int(row % PANEL), N_IN, 1.0f, out.data());
            const std::vector<double> wanted(weight.data() + row * N_IN, weight.data() + (row + 1) * N_IN);
            check.close("row", out.data(), wanted.data(), N_IN, 1e-6);
            check.that(out.kept(), "nothing is written past the end");
        }
        // Sums of 768 terms up to 100 cancel; float32 leaves a thousandth of one.
        for (const int64_t n_rows : {1, 2, 3, 4, 7, 8, 9, 16, 21, 40}) {
            check.about(std::string(plain.name) + ", " + std::to_string(n_rows) + " rows");
            const auto x = Values::random(n_rows * N_IN, 2, uint32_t(n_rows));
            const Activations activations(x, n_rows);
            for (int64_t panel = 0; panel < packed.n_panels(); ++panel) {
                alignas(64) float fast[MOST_ROWS * PANEL], exact[MOST_ROWS * PANEL];
                linear_kernels().panel[plain.format](packed.panel(panel), activations.quantized, 0, n_rows, fast);
                linear_kernels().panel_exact[plain.format](packed.panel(panel), x.data(), N_IN, N_IN, n_rows, exact);
                for (int64_t m = 0; m < n_rows; ++m) {
                    for (int64_t row = panel * PANEL; row < std::min(N_OUT, (panel + 1) * PANEL); ++row) {
                        double quantised = 0, whole = 0;
                        for (int64_t i = 0; i < N_IN; ++i) {
                            quantised += activations.value(m, i) * weight[row * N_IN + i];
                            whole += double(x[m * N_IN + i]) * weight[row * N_IN + i];
                        }
                        check.close("product", fast + m * PANEL + row % PANEL, &quantised, 1, 1e-3);
                        check.close("exact product", exact + m * PANEL + row % PANEL, &whole, 1, 1e-3);
                    }
                }
            }
        }
    }
}

}  // namespace pagewell
