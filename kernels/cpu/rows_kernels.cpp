#include "rows.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int N = f32v::N;

// The sum over vectors of x, which `take(v, n, sum)` adds to; of the last one only n values count. Four partial sums hide the
// latency of the addition; their order is fixed by the size alone.
template <typename F>
PW_INLINE float sum(const float* x, int64_t size, const F& take) {
    f32v sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (; i + 4 * N <= size; i += 4 * N) {
        for (int j = 0; j < 4; ++j) sums[j] = take(load(x + i + j * N), N, sums[j]);
    }
    for (int j = 0; i < size; i += N, j = (j + 1) & 3) {
        const int n = size - i < N ? int(size - i) : N;
        sums[j] = take(n < N ? load_some(x + i, n) : load(x + i), n, sums[j]);
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
    const float mean = sum(x, size, [](f32v v, int, f32v s) { return fma(v, v, s); }) / float(size);
    const f32v scale = set1(1.0f / __builtin_sqrtf(mean + eps));
    for_each(size, [&](int64_t i, int n) { put(out + i, mul(mul(get(x + i, n), scale), get(weight + i, n)), n); });
}

void rms_norm_add(const float* x, const float* residual, const float* weight, float* out, float* sum, int64_t size, float eps) {
    for_each(size, [&](int64_t i, int n) { put(sum + i, add(get(x + i, n), get(residual + i, n)), n); });
    rms_norm(sum, weight, out, size, eps);
}

void layer_norm(const float* x, const float* weight, const float* bias, float* out, int64_t size, float eps) {
    const f32v mean = set1(sum(x, size, [](f32v v, int, f32v s) { return add(v, s); }) / float(size));
    // Values behind the end are 0 and not the mean, so that theirs are put to 0 again.
    const float squares = sum(x, size, [&](f32v v, int n, f32v s) {
        f32v off = sub(v, mean);
        if (n < N) {
            float values[N];
            store(values, off);
            off = load_some(values, n);
        }
        return fma(off, off, s);
    });
    const f32v scale = set1(1.0f / __builtin_sqrtf(squares / float(size) + eps));
    for_each(size, [&](int64_t i, int n) {
        const f32v normed = mul(mul(sub(get(x + i, n), mean), scale), get(weight + i, n));
        put(out + i, bias ? add(normed, get(bias + i, n)) : normed, n);
    });
}

void add_rows(const float* x, const float* y, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) { put(out + i, add(get(x + i, n), get(y + i, n)), n); });
}

void scale(const float* x, float factor, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) { put(out + i, mul(get(x + i, n), set1(factor)), n); });
}

void silu_mul(const float* gate, const float* up, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) { put(out + i, mul(silu(get(gate + i, n)), get(up + i, n)), n); });
}

void gelu_tanh_mul(const float* gate, const float* up, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) { put(out + i, mul(gelu_tanh(get(gate + i, n)), get(up + i, n)), n); });
}

void gelu_tanh_rows(const float* x, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) { put(out + i, gelu_tanh(get(x + i, n)), n); });
}

void relu_squared(const float* x, float* out, int64_t size) {
    for_each(size, [&](int64_t i, int n) {
        const f32v positive = max(zero(), get(x + i, n));
        put(out + i, mul(positive, positive), n);
    });
}

}  // namespace

const RowsKernels rows = {rms_norm, rms_norm_add, layer_norm,    add_rows,       scale,
                          silu_mul, gelu_tanh_mul, gelu_tanh_rows, relu_squared};

}  // namespace pagewell::PW_ISA
