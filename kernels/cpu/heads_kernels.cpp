#include "heads.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int N = f32v::N;
#if defined(__AVX512F__)
constexpr int ROWS = 4, VECTORS = 4;
#elif defined(__AVX2__)
constexpr int ROWS = 4, VECTORS = 2;
#else
constexpr int ROWS = 4, VECTORS = 4;
#endif

struct F32 {
    using Item = float;
    static PW_INLINE f32v get(const Item* p) { return load(p); }
};
struct F16 {
    using Item = uint16_t;
    static PW_INLINE f32v get(const Item* p) { return load_f16(p); }
};
struct BF16 {
    using Item = uint16_t;
    static PW_INLINE f32v get(const Item* p) { return load_bf16(p); }
};

// R rows and V vectors of columns.
template <typename T, int R, int V>
PW_INLINE void tile(const float* x, int64_t x_stride, const typename T::Item* w, int64_t n_in, int64_t n_out, float* y, int64_t y_stride) {
    f32v sums[R][V];
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) sums[r][v] = zero();
    }
    for (int64_t i = 0; i < n_in; ++i, w += n_out) {
        f32v column[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) column[v] = T::get(w + v * N);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
            const f32v a = set1(x[r * x_stride + i]);
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[r][v] = fma(a, column[v], sums[r][v]);
        }
    }
    for (int r = 0; r < R; ++r) {
        for (int v = 0; v < V; ++v) store(y + r * y_stride + v * N, sums[r][v]);
    }
}

// The last columns, fewer than a vector has.
template <typename T>
void rest(const float* x, int64_t x_stride, int64_t rows, const typename T::Item* w, int64_t n_in, int64_t n_out, int n, float* y,
          int64_t y_stride) {
    for (int64_t r = 0; r < rows; ++r) {
        f32v sum = zero();
        for (int64_t i = 0; i < n_in; ++i) {
            typename T::Item items[N] = {};
            for (int j = 0; j < n; ++j) items[j] = w[i * n_out + j];
            sum = fma(set1(x[r * x_stride + i]), T::get(items), sum);
        }
        store_some(y + r * y_stride, sum, n);
    }
}

template <typename T, int R>
PW_INLINE void rows_of(const float* x, int64_t x_stride, const typename T::Item* w, int64_t n_in, int64_t n_out, float* y, int64_t y_stride) {
    int64_t o = 0;
    for (; o + VECTORS * N <= n_out; o += VECTORS * N) tile<T, R, VECTORS>(x, x_stride, w + o, n_in, n_out, y + o, y_stride);
    for (; o + N <= n_out; o += N) tile<T, R, 1>(x, x_stride, w + o, n_in, n_out, y + o, y_stride);
    if (o < n_out) rest<T>(x, x_stride, R, w + o, n_in, n_out, int(n_out - o), y + o, y_stride);
}

template <typename T>
void product(const float* x, int64_t x_stride, int64_t rows, const void* data, int64_t n_in, int64_t n_out, float* y, int64_t y_stride) {
    const auto* w = static_cast<const typename T::Item*>(data);
    for (; rows >= ROWS; rows -= ROWS, x += ROWS * x_stride, y += ROWS * y_stride) {
        rows_of<T, ROWS>(x, x_stride, w, n_in, n_out, y, y_stride);
    }
    for (; rows > 0; --rows, x += x_stride, y += y_stride) rows_of<T, 1>(x, x_stride, w, n_in, n_out, y, y_stride);
}

void product(const float* x, int64_t x_stride, int64_t rows, const void* w, HeadsType type, int64_t n_in, int64_t n_out, float* y,
             int64_t y_stride) {
    switch (type) {
        case HeadsType::f32: return product<F32>(x, x_stride, rows, w, n_in, n_out, y, y_stride);
        case HeadsType::f16: return product<F16>(x, x_stride, rows, w, n_in, n_out, y, y_stride);
        case HeadsType::bf16: return product<BF16>(x, x_stride, rows, w, n_in, n_out, y, y_stride);
    }
}

}  // namespace

const HeadsKernels heads = {product};

}  // namespace pagewell::PW_ISA
