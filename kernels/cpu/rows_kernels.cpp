#include "rows.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int N = f32v::N;

// Four partial sums hide the latency of the addition; their order is fixed by the size alone.
float sum_of_squares(const float* x, int64_t size) {
    f32v sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * N <= size; i += 4 * N) {
        for (int j = 0; j < 4; ++j) {
            const f32v v = load(x + i + j * N);
            sums[j] = fma(v, v, sums[j]);
        }
    }
    for (int j = 0; i < size; i += N, j = (j + 1) & 3) {
        const f32v v = size - i < N ? load_some(x + i, int(size - i)) : load(x + i);
        sums[j] = fma(v, v, sums[j]);
    }
    return reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
}

template <typename F>
PW_INLINE void for_each(int64_t size, const F& f) {
    int64_t i = 0;
    for (; i + N <= size; i += N) f(i, N);
    if (i < size) f(i, int(size - i));
}

PW_INLINE f32v get(const float* p, int n) {
    return n == N ? load(p) : load_some(p, n);
}

PW_INLINE void put(float* p, f32v x, int n) {
    if (n == N) {
        store(p, x);
    } else {
        store_some(p, x, n);
    }
}

void rms_norm(const float* x, const float* weight, float* out, int64_t size, float eps) {
    const float mean = sum_of_squares(x, size) / float(size);
    const f32v scale = set1(1.0f / __builtin_sqrtf(mean + eps));
    for_each(size, [&](int64_t i, int n) { put(out + i, mul(mul(get(x + i, n), scale), get(weight + i, n)), n); });
}

void rms_norm_add(const float* x, const float* residual, const float* weight, float* out, float* sum, int64_t size, float eps) {
    for_each(size, [&](int64_t i, int n) { put(sum + i, add(get(x + i, n), get(residual + i, n)), n); });
    rms_norm(sum, weight, out, size, eps);
}

void silu_mul(const float* gate, const float* up, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) { put(out + i, mul(silu(get(gate + i, n)), get(up + i, n)), n); });
}

void gelu_tanh_mul(const float* gate, const float* up, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) { put(out + i, mul(gelu_tanh(get(gate + i, n)), get(up + i, n)), n); });
}

}  // namespace

const RowsKernels rows = {rms_norm, rms_norm_add, silu_mul, gelu_tanh_mul};

}  // namespace pagewell::PW_ISA
