// Products in float32, activations as they are, and rows of a weight. Included by linear_kernels.cpp only.
#pragma once

#include "linear_formats.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int EXACT_CHUNK = 256;  // values of K in float32 at once: 16 KiB for a panel

template <Format T, int B>
PW_INLINE F number(W w) {
    if constexpr (CODED<T>) return w_look_up<B>(w, table_of<T>()->values);
    else return w_float<B>(w);
}

// use(k, values) for the values from k = 4 G on of a block, in their order.
template <Format T, int G = 0, typename Use>
PW_INLINE void each_of_block(const uint8_t* block, const Head& head, const Scales& scales, const Use& use) {
    using L = Layout<T>;
    if constexpr (G < 8) {
        const bool second = L::HALVES && G >= 4;
        const F scale = second ? scales.second : scales.first, minimum = second ? scales.second_minimum : scales.minimum;
        W w = group<T, G>(block);
        if constexpr (T == TQ1_0 || T == TQ2_0) w = w_sub(w, 1);
        if constexpr (T == Q3_K) w = w_sub(w, 4);
        if constexpr (T == Q4_0) w = w_sub(w, 8);
        if constexpr (T == Q5_0) w = w_sub(w, 16);
        if constexpr (T == Q6_K) w = w_sub(w, 32);
        const auto put = [&](int i, F numbers) {
            if constexpr (SCALED<T> && L::MINS) numbers = f_fma(f_all(1.0f), numbers, head.dmin);
            F value = f_mul(numbers, scale);
            if constexpr (!SCALED<T> && L::MINS) value = f_fma(f_all(1.0f), value, minimum);
            use(4 * G + i, value);
        };
        put(0, number<T, 0>(w));
        put(1, number<T, 1>(w));
        put(2, number<T, 2>(w));
        put(3, number<T, 3>(w));
        each_of_block<T, G + 1>(block, head, scales, use);
    }
}

// use(k, values of the 16 rows) for k = begin .. end along a panel, in that order.
template <Format T, typename Use>
PW_INLINE void each_float(const uint8_t* panel, int64_t begin, int64_t end, const Use& use) {
    if constexpr (T == F16 || T == BF16) {
        const uint8_t* p = panel + begin * PANEL * 2;
        for (int64_t k = begin; k < end; ++k, p += PANEL * 2) {
            prefetch(p);
            use(k, T == F16 ? f_half(p) : f_bf16(p));
        }
    } else {
        using L = Layout<T>;
        const uint8_t* p = super_at<T>(panel, begin / BLOCK);
        for (int64_t k = begin; k < end;) {
            const Head head = read_head<T>(p);
            p += L::HEAD;
            for (int i = 0; i < L::NB; ++i, p += BLOCK_BYTES<T>, k += BLOCK) {
                for (int line = 0; line < BLOCK_BYTES<T>; line += 64) prefetch(p + line);
                if constexpr (FP8<T>) {
                    const F scale = f_mul(head.d, f_all(FP8_UNIT));
                    for (int j = 0; j < BLOCK; ++j) use(k + j, f_mul(f_fp8(p + j * PANEL), scale));
                } else {
                    each_of_block<T>(p, head, read_scales<T>(head, p), [&](int j, F values) { use(k + j, values); });
                }
            }
        }
    }
}

// Values begin .. end of K of a panel in float32, [end - begin, 16].
template <Format T>
PW_INLINE const float* as_floats(const uint8_t* panel, int64_t begin, int64_t end, float* out) {
    if constexpr (T == F32) {
        return (const float*)panel + begin * PANEL;
    } else {
        each_float<T>(panel, begin, end, [&](int64_t k, F values) { f_store(out + (k - begin) * PANEL, values); });
        return out;
    }
}

template <int M>
void tile_exact(const float* w, const float* x, int64_t x_stride, int64_t n, float* sums) {
    F acc[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m] = f_load(sums + m * PANEL);
    for (int64_t k = 0; k < n; ++k) {
        const F row = f_load(w + k * PANEL);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) acc[m] = f_fma(row, f_all(x[m * x_stride + k]), acc[m]);
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) f_store(sums + m * PANEL, acc[m]);
}

template <Format T>
void panel_exact(const uint8_t* panel, const float* x, int64_t x_stride, int64_t k, int64_t n_rows, float* acc) {
    if constexpr (T > F32) {
        if (n_rows == 1) {  // a step of decoding: unpacking goes on while sums are waited for
            F sum = f_zero();
            each_float<T>(panel, 0, k, [&](int64_t i, F values) { sum = f_fma(values, f_all(x[i]), sum); });
            f_store(acc, sum);
            return;
        }
    }
    alignas(64) float buffer[T == F32 ? 1 : EXACT_CHUNK * PANEL];
    for (int64_t m = 0; m < n_rows; ++m) f_store(acc + m * PANEL, f_zero());
    for (int64_t begin = 0; begin < k; begin += EXACT_CHUNK) {
        const int64_t end = begin + EXACT_CHUNK < k ? begin + EXACT_CHUNK : k;
        const float* w = as_floats<T>(panel, begin, end, buffer);
        int64_t m = 0;
        for (; m + TILE <= n_rows; m += TILE) tile_exact<TILE>(w, x + m * x_stride + begin, x_stride, end - begin, acc + m * PANEL);
        for (; m + 4 <= n_rows; m += 4) tile_exact<4>(w, x + m * x_stride + begin, x_stride, end - begin, acc + m * PANEL);
        for (; m + 2 <= n_rows; m += 2) tile_exact<2>(w, x + m * x_stride + begin, x_stride, end - begin, acc + m * PANEL);
        for (; m < n_rows; ++m) tile_exact<1>(w, x + m * x_stride + begin, x_stride, end - begin, acc + m * PANEL);
    }
}

template <Format T>
void panel_row(const uint8_t* panel, int row, int64_t k, float scale, float* out) {
    alignas(64) float buffer[T == F32 ? 1 : EXACT_CHUNK * PANEL];
    for (int64_t begin = 0; begin < k; begin += EXACT_CHUNK) {
        const int64_t end = begin + EXACT_CHUNK < k ? begin + EXACT_CHUNK : k;
        const float* w = as_floats<T>(panel, begin, end, buffer);
        for (int64_t i = 0; i < end - begin; ++i) out[begin + i] = w[i * PANEL + row] * scale;
    }
}

}  // namespace
}  // namespace pagewell::PW_ISA
