#include "recurrent.h"

#include <cmath>
#include <cstring>

#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int N = f32v::N;
constexpr int VECTORS = int(PART) / N;

void conv(const ConvPart& part) {
    const int64_t width = part.width;
    alignas(64) float taps[MOST_TAPS][PART] = {}, weights[MOST_TAPS][PART] = {}, bias[PART] = {}, total[PART];
    for (int c = 0; c < part.n_channels; ++c) {
        for (int64_t i = 0; i < width; ++i) weights[i][c] = part.weight[c * width + i];
        for (int64_t i = 0; i < width - 1; ++i) taps[i][c] = part.begins ? 0.0f : part.state[c * (width - 1) + i];
        if (part.bias) bias[c] = part.bias[c];
    }
    for (int64_t row = 0; row < part.n_rows; ++row) {
        // The oldest input's place is taken by the newest one.
        const int64_t oldest = row % width, newest = (row + width - 1) % width;
        std::memcpy(taps[newest], part.x + row * part.x_stride, size_t(part.n_channels) * sizeof(float));
        for (int v = 0; v < VECTORS; ++v) {
            f32v sum = load(bias + v * N);
            for (int64_t i = 0; i < width; ++i) sum = add(sum, mul(load(taps[(oldest + i) % width] + v * N), load(weights[i] + v * N)));
            store(total + v * N, part.activate ? silu(sum) : sum);
        }
        std::memcpy(part.out + row * part.out_stride, total, size_t(part.n_channels) * sizeof(float));
    }
    for (int c = 0; c < part.n_channels; ++c) {
        for (int64_t i = 0; i < width - 1; ++i) part.state[c * (width - 1) + i] = taps[(part.n_rows + i) % width][c];
    }
}

PW_INLINE float softplus(float x) {
    return x > 20.0f ? x : std::log1p(std::exp(x));
}

// What a state is multiplied by: exp(-exp(log_rate) * step)
PW_INLINE float decay(const HeadPart& part, float step) {
    return std::exp(-std::exp(part.log_rate) * step);
}

// x [n] by a factor over its length, to `to`, whose end is zeros up to a whole vector.
void unit(const float* x, int64_t n, float factor, float* to) {
    f32v sums[4] = {zero(), zero(), zero(), zero()};
    int64_t i = 0;
    for (int j = 0; i < n; i += N, j = (j + 1) & 3) {
        const f32v v = n - i < N ? load_some(x + i, int(n - i)) : load(x + i);
        sums[j] = fma(v, v, sums[j]);
    }
    const float squares = reduce_add(add(add(sums[0], sums[1]), add(sums[2], sums[3])));
    const f32v scale = set1(factor / std::sqrt(squares + 1e-6f));
    for (i = 0; i < n; i += N) store(to + i, mul(n - i < N ? load_some(x + i, int(n - i)) : load(x + i), scale));
}

// The part's state in rows of PART values, zeros past the last.
void take(const HeadPart& part, float* state) {
    for (int64_t k = 0; k < part.key_dim; ++k) {
        float* row = state + k * PART;
        if (part.begins || part.n_values < PART) std::memset(row, 0, PART * sizeof(float));
        if (!part.begins) std::memcpy(row, part.state + k * part.state_stride, size_t(part.n_values) * sizeof(float));
    }
}

void give_back(const HeadPart& part, const float* state) {
    for (int64_t k = 0; k < part.key_dim; ++k) {
        std::memcpy(part.state + k * part.state_stride, state + k * PART, size_t(part.n_values) * sizeof(float));
    }
}

void delta(const HeadPart& part, float* scratch) {
    float* state = scratch;
    float* values = state + part.key_dim * PART;
    float* key = values + PART;
    float* query = key + (part.key_dim + PART - 1) / PART * PART;
    take(part, state);
    std::memset(values, 0, PART * sizeof(float));
    const float scale = 1.0f / std::sqrt(float(part.key_dim));
    for (int64_t row = 0; row < part.n_rows; ++row) {
        unit(part.q + row * part.q_stride, part.key_dim, scale, query);
        unit(part.k + row * part.k_stride, part.key_dim, 1.0f, key);
        std::memcpy(values, part.v + row * part.v_stride, size_t(part.n_values) * sizeof(float));
        const f32v kept = set1(decay(part, softplus(part.a[row * part.a_stride] + part.bias)));
        const f32v rate = set1(1.0f / (1.0f + std::exp(-part.b[row * part.b_stride])));
        f32v sums[VECTORS];
        for (int v = 0; v < VECTORS; ++v) sums[v] = zero();
        for (int64_t k = 0; k < part.key_dim; ++k) {
            const f32v of_key = set1(key[k]);
            for (int v = 0; v < VECTORS; ++v) {
                float* at = state + k * PART + v * N;
                const f32v now = mul(load(at), kept);
                store(at, now);
                sums[v] = fma(now, of_key, sums[v]);
            }
        }
        f32v change[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            change[v] = mul(sub(load(values + v * N), sums[v]), rate);
            sums[v] = zero();
        }
        for (int64_t k = 0; k < part.key_dim; ++k) {
            const f32v of_key = set1(key[k]), of_query = set1(query[k]);
            for (int v = 0; v < VECTORS; ++v) {
                float* at = state + k * PART + v * N;
                const f32v now = fma(of_key, change[v], load(at));
                store(at, now);
                sums[v] = fma(now, of_query, sums[v]);
            }
        }
        for (int v = 0; v < VECTORS; ++v) store(values + v * N, sums[v]);
        std::memcpy(part.out + row * part.out_stride, values, size_t(part.n_values) * sizeof(float));
    }
    give_back(part, state);
}

void scan(const HeadPart& part, float* scratch) {
    float* state = scratch;
    float* values = state + part.key_dim * PART;
    take(part, state);
    std::memset(values, 0, PART * sizeof(float));
    for (int64_t row = 0; row < part.n_rows; ++row) {
        const float *into = part.k + row * part.k_stride, *out_of = part.q + row * part.q_stride;
        std::memcpy(values, part.v + row * part.v_stride, size_t(part.n_values) * sizeof(float));
        const float step = softplus(part.a[row * part.a_stride] + part.bias);
        const f32v kept = set1(decay(part, step));
        f32v added[VECTORS], sums[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            added[v] = mul(load(values + v * N), set1(step));
            sums[v] = mul(load(values + v * N), set1(part.skip));
        }
        for (int64_t k = 0; k < part.key_dim; ++k) {
            const f32v of_input = set1(into[k]), of_output = set1(out_of[k]);
            for (int v = 0; v < VECTORS; ++v) {
                float* at = state + k * PART + v * N;
                const f32v now = fma(of_input, added[v], mul(load(at), kept));
                store(at, now);
                sums[v] = fma(now, of_output, sums[v]);
            }
        }
        for (int v = 0; v < VECTORS; ++v) store(values + v * N, sums[v]);
        std::memcpy(part.out + row * part.out_stride, values, size_t(part.n_values) * sizeof(float));
    }
    give_back(part, state);
}

}  // namespace

const RecurrentKernels recurrent = {conv, delta, scan};

}  // namespace pagewell::PW_ISA
