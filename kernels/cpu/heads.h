// Products of which each head has its own matrix.
#pragma once

#include <cstdint>

#include "isa.h"

namespace pagewell {

enum class HeadsType : int64_t { f32, f16, bf16 };

struct HeadsKernels {
    // y[r][o] = sum over i, rising, of x[r][i] w[i][o], one fma each; w [n_in][n_out], rows of x and y some way apart.
    void (*product)(const float* x, int64_t x_stride, int64_t rows, const void* w, HeadsType type, int64_t n_in, int64_t n_out,
                    float* y, int64_t y_stride);
};

PAGEWELL_TABLES(HeadsKernels, heads)

}  // namespace pagewell
