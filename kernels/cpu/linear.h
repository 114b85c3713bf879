// Products with weights that stay quantised: packed matrices, quantised activations, and each level's kernels.
//
// A packed matrix lies in panels of 16 rows of the weight (outputs). A panel is a run of blocks of 32 values along K, and a block holds those
// values of all 16 rows in the order in which they are used, scales first, so that a product reads memory front to back. Rows past the last are zero.
//
// What is computed, on every level and for any number of rows, in this order of arithmetic. x is quantised in blocks of 32: d = max|x| / 127,
// q = round(x / d). For each output, block by block along K:
//     dot = sum of (w - zero) * q over the block                      exact integers
//     acc = fma(float(dot) * scale, d, acc)                           with two dots and scales per block where scales are per 16
//     acc = fma(minimum, d * sum(q), acc)                             where the format has minimums, of each half where they are per 16
// Only the last two lines round, and they see nothing but one row, one output and the block's place: batches cannot change a result.
// A weight whose columns are in another order is multiplied by x in that order: it is gathered before it is quantised.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa.h"

namespace pagewell {

constexpr int PANEL = 16;       // rows of the weight in a panel
constexpr int BLOCK = 32;       // values of K in a block
constexpr int MOST_ROWS = 256;  // rows of activations that one call of a panel kernel takes

// In the order of FORMATS in linear_pack.cpp.
enum Format : int {
    Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K, Q2_K, Q3_K, IQ4_NL, IQ4_XS, MXFP4,
    TQ1_0, TQ2_0,  // both as two bits to a value
    IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S, IQ1_M,  // as codes of three or four bits for what the grids have
    // With one scale, INT4 and INT8_ZERO with one zero point, for as many values of a row as the name says.
    INT4_128, INT4_64, INT4_32, INT8_128, INT8_32, INT8_ZERO_128, INT8_ZERO_32,
    E2M1_SHORT,  // as MXFP4: half of each scale is a bfloat16, as the powers of two of the OCP's MXFP4 are
    E2M1_32, E2M1_16,
    // Multiplied as floats: activations are not quantised.
    F32, F16, BF16, FP8_128, FP8_32, NF4_64, NF4_32, FP4_64, FP4_32,
    N_FORMATS
};

// Bytes of a panel for the values of one block of the file, that is of its 16 rows: linear_formats.h has their order,
// and linear_kernels.cpp holds it to these numbers.
constexpr int PANEL_BYTES[N_FORMATS] = {
    288, 320, 352, 384, 544, 64 + 8 * 288, 64 + 8 * 352, 32 + 8 * 416, 64 + 8 * 160, 32 + 8 * 224, 288, 32 + 8 * 272, 288,
    32 + 8 * 128, 32 + 8 * 128,
    32 + 8 * 208, 32 + 8 * 224, 32 + 8 * 224, 32 + 8 * 272, 32 + 8 * 272, 32 + 8 * 208, 32 + 8 * 224,
    80 + 4 * 256, 80 + 512, 80 + 256, 64 + 2048, 64 + 512, 96 + 2048, 96 + 512,
    288, 64 + 256, 128 + 256,
    64, 32, 32, 64 + 2048, 64 + 512, 64 + 512, 64 + 256, 64 + 512, 64 + 256,
};

// Zero points of the packed integers, by which sums are corrected: of whole blocks first, then of halves of blocks.
enum Zero : int { ZERO_1, ZERO_8, ZERO_16, ZERO_128, HALVES_4, HALVES_16, HALVES_32, HALVES_128, N_ZEROS };
constexpr int ZERO_POINT[N_ZEROS] = {1, 8, 16, 128, 4, 16, 32, 128};
constexpr unsigned HALF_SUMS = 1u << N_ZEROS;  // the bit in Quantized::zeros of a format with a minimum for each half

// Activations quantised in blocks. Rows lie in groups, and within a group block by block, so that a product reads them as
// it reads the panel: front to back. A group is as many rows as a tile takes at once.
struct Quantized {
    int8_t* q;  // [groups, blocks, group, BLOCK]
    float* d;   // [groups, blocks, group]
    float* s;   // as d: d * sum(q)
    float* halves;  // [groups, blocks, group, 2]: d * sum(q) of each half, if HALF_SUMS is wanted
    // [N_ZEROS, groups, blocks, group, 2]: what a dot starts from so that the zero point is taken off: of the whole block first, or of its halves.
    // An int32, or two int16 whose sum it is, as the level's kernels keep their sums.
    int32_t* seeds;
    int64_t blocks, group, rows;  // group: 1, 2, 4, 8 or 16; rows: as allocated, whole groups
    unsigned zeros;               // bit by bit, which of the seeds, and of the sums of halves, are wanted

    // Where a row's first block lies, in rows of one block.
    PW_INLINE int64_t at(int64_t row) const { return (row & -group) * blocks + (row & (group - 1)); }
};

// The group for so many rows.
constexpr int64_t group_of(int64_t n_rows) {
    int64_t group = 1;
    while (group < n_rows && group < 16) group *= 2;
    return group;
}

struct LinearKernels {
    // One row: x [k] -> row of quantized.
    void (*quantize)(const float* x, const Quantized& quantized, int64_t row);

    // The bit in Quantized::zeros of the seeds, or sums of halves, that a format needs, or 0.
    unsigned zeros[N_FORMATS];

    // acc [n_rows, 16] = rows first .. first + n_rows of x times one panel; at most MOST_ROWS. By format; null for float formats.
    void (*panel[N_FORMATS])(const uint8_t* panel, const Quantized& x, int64_t first, int64_t n_rows, float* acc);

    // The same in float32 from x itself, [n_rows, k] with rows x_stride apart.
    void (*panel_exact[N_FORMATS])(const uint8_t* panel, const float* x, int64_t x_stride, int64_t k, int64_t n_rows, float* acc);

    // out[m, 0 .. n] = acc[m] + bias, rows out_stride apart; bias may be null.
    void (*finish)(const float* acc, const float* bias, float* out, int64_t out_stride, int64_t n_rows, int n);

    // out[m, 0 .. n] = activation(gate[m] + gate_bias) * (up[m] + up_bias)
    void (*finish_gated)(const float* gate, const float* up, const float* gate_bias, const float* up_bias, bool gelu, float* out,
                         int64_t out_stride, int64_t n_rows, int n);

    // out[0 .. k] = row `row` of a panel, in float32, times scale
    void (*row[N_FORMATS])(const uint8_t* panel, int row, int64_t k, float scale, float* out);
};

PAGEWELL_TABLES(LinearKernels, linear)

}  // namespace pagewell
