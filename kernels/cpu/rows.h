// Operators that work on each row of activations by itself.
#pragma once

#include <cstdint>

#include "isa.h"

namespace pagewell {

struct RowsKernels {
    // out[i] = x[i] * rsqrt(mean(x^2) + eps) * weight[i]
    void (*rms_norm)(const float* x, const float* weight, float* out, int64_t size, float eps);
    // sum[i] = x[i] + residual[i], then out = rms_norm(sum)
    void (*rms_norm_add)(const float* x, const float* residual, const float* weight, float* out, float* sum, int64_t size, float eps);
    // out[i] = (x[i] - mean) * rsqrt(variance + eps) * weight[i] + bias[i]; no bias: nullptr
    void (*layer_norm)(const float* x, const float* weight, const float* bias, float* out, int64_t size, float eps);
    void (*add)(const float* x, const float* y, float* out, int64_t size);
    // out[i] = x[i] * factor
    void (*scale)(const float* x, float factor, float* out, int64_t size);
    // out[i] = activation(gate[i]) * up[i]
    void (*silu_mul)(const float* gate, const float* up, float* out, int64_t size);
    void (*gelu_tanh_mul)(const float* gate, const float* up, float* out, int64_t size);
    // out[i] = activation(x[i])
    void (*gelu_tanh)(const float* x, float* out, int64_t size);
    void (*relu_squared)(const float* x, float* out, int64_t size);
};

PAGEWELL_TABLES(RowsKernels, rows)

}  // namespace pagewell
