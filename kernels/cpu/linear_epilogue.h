// Epilogues: from the sums of a panel to rows of the result. Included by linear_kernels.cpp only.
#pragma once

#include "linear.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

template <typename Value>
PW_INLINE void put_rows(float* out, int64_t out_stride, int64_t n_rows, int n, const Value& value) {
    for (int64_t m = 0; m < n_rows; ++m) {
        for (int i = 0; i < n; i += f32v::N) {
            const f32v x = value(m, i);
            if (n - i >= f32v::N) store(out + m * out_stride + i, x);
            else store_some(out + m * out_stride + i, x, n - i);
        }
    }
}

PW_INLINE f32v with_bias(const float* acc, const float* bias, int i, int n) {
    const f32v x = load(acc + i);
    if (bias == nullptr) return x;
    return add(x, n - i >= f32v::N ? load(bias + i) : load_some(bias + i, n - i));
}

void finish(const float* acc, const float* bias, float* out, int64_t out_stride, int64_t n_rows, int n) {
    put_rows(out, out_stride, n_rows, n, [&](int64_t m, int i) { return with_bias(acc + m * PANEL, bias, i, n); });
}

void finish_gated(const float* gate, const float* up, const float* gate_bias, const float* up_bias, bool gelu, float* out,
                  int64_t out_stride, int64_t n_rows, int n) {
    put_rows(out, out_stride, n_rows, n, [&](int64_t m, int i) {
        const f32v g = with_bias(gate + m * PANEL, gate_bias, i, n), u = with_bias(up + m * PANEL, up_bias, i, n);
        return mul(gelu ? gelu_tanh(g) : silu(g), u);
    });
}

}  // namespace
}  // namespace pagewell::PW_ISA
