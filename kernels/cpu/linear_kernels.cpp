#include "linear.h"
#include "linear_formats.h"
#if defined(__AMX_INT8__)
#include "linear_tiles.h"
#endif

namespace pagewell::PW_ISA {
namespace {

// Rows of activations that share what is loaded of a panel: as many as the registers hold sums of.
#if defined(__AVX512F__)
constexpr int TILE = 8;
#else
constexpr int TILE = 4;
#endif
// Blocks of a panel that are unpacked at once, for more rows than a tile: 8 KiB of integers and their scales stay in the nearest cache, which is
// larger where there are AMX tiles; those lose 100 cycles at each chunk's beginning.
#if defined(__AMX_INT8__)
constexpr int CHUNK = 32;
#else
constexpr int CHUNK = 16;
#endif
// Bytes that are asked for ahead of their use (measured: 5 to 30% more of the bandwidth than the hardware's own prefetch).
constexpr int AHEAD = 2048;

struct Unpacked {
    alignas(64) uint8_t w[CHUNK][8][64];
    alignas(64) float first[CHUNK][16], second[CHUNK][16], minimum[CHUNK][16];
};

void quantize(const float* x, const Quantized& quantized, int64_t row) {
    constexpr int N = f32v::N, VECTORS = BLOCK / N;
    int8_t* q = quantized.q + row * quantized.k;
    float* d = quantized.d + row * quantized.blocks;
    float* s = quantized.s + row * quantized.blocks;
    for (int64_t b = 0; b < quantized.blocks; ++b, x += BLOCK, q += BLOCK) {
        f32v v[VECTORS], most = zero(), broken = zero();
        for (int i = 0; i < VECTORS; ++i) {
            v[i] = load(x + i * N);
            most = max(most, abs(v[i]));
            broken = fma(v[i], zero(), broken);  // infinity and NaN must not be quantised away
        }
        const float largest = reduce_max(most);
        const f32v inverse = set1(largest > 0 ? 127.0f / largest : 0.0f);
        f32v half[2] = {zero(), zero()};
        for (int i = 0; i < VECTORS; ++i) {
            v[i] = round(mul(v[i], inverse));
            store_s8(q + i * N, v[i]);
            half[i * 2 / VECTORS] = add(half[i * 2 / VECTORS], v[i]);
        }
        d[b] = largest / 127.0f + reduce_add(broken);
        if (d[b] - d[b] != 0.0f) half[0] = half[1] = zero();  // what is not finite is no integer either; d carries it on
        const float sum[2] = {reduce_add(half[0]), reduce_add(half[1])};
        s[b] = d[b] * (sum[0] + sum[1]);
        for (int zero_kind = 0; zero_kind < N_ZEROS; ++zero_kind) {
            int32_t* seeds = quantized.seeds + ((zero_kind * quantized.rows + row) * quantized.blocks + b) * 2;
            const int point = ZERO_POINT[zero_kind];
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
            // Lanes 0, 1, 4, 5 meet in the low half of each 32 bits, lanes 2, 3, 6, 7 in the high one.
            float lanes[2][8];
            store(lanes[0], half[0]);
            store(lanes[1], half[1]);
            int32_t low[2], high[2];
            for (int i = 0; i < 2; ++i) {
                low[i] = -point * int32_t(lanes[i][0] + lanes[i][1] + lanes[i][4] + lanes[i][5]);
                high[i] = -point * int32_t(lanes[i][2] + lanes[i][3] + lanes[i][6] + lanes[i][7]);
            }
            if (zero_kind == ZERO_32) {
                for (int i = 0; i < 2; ++i) seeds[i] = int32_t(uint32_t(low[i]) & 0xffff) | int32_t(uint32_t(high[i]) << 16);
            } else {
                seeds[0] = int32_t(uint32_t(low[0] + low[1]) & 0xffff) | int32_t(uint32_t(high[0] + high[1]) << 16);
            }
#else
            if (zero_kind == ZERO_32) {
                seeds[0] = -point * int32_t(sum[0]);
                seeds[1] = -point * int32_t(sum[1]);
            } else {
                seeds[0] = -point * int32_t(sum[0] + sum[1]);
            }
#endif
        }
    }
}

// The rows of x that a tile works on.
template <int M>
struct Rows {
    const int8_t* q;
    const float* d;
    const float* s;
    const int32_t* seeds;
    int64_t k, blocks;

    PW_INLINE Rows(const Quantized& x, int64_t first, int zero_kind)
        : q(x.q + first * x.k), d(x.d + first * x.blocks), s(x.s + first * x.blocks),
          seeds(x.seeds + (zero_kind * x.rows + first) * x.blocks * 2), k(x.k), blocks(x.blocks) {}
};

template <Format T>
constexpr int ZERO_KIND = Layout<T>::ZERO < 0 ? 0 : Layout<T>::ZERO;

template <Format T, int G, int M, typename Get>
PW_INLINE void add_groups(Dot (&dots)[M], const Get& get, const Rows<M>& x, int64_t block, int end) {
    if constexpr (G < 8) {
        if (G < end) {
            const W w = get.template operator()<G>();
            const int8_t* q = x.q + block * BLOCK + 4 * G;
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) {
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
                if constexpr (T == Q8_0) {
                    dots[m] = dot_add_signed(dots[m], w, q + m * x.k);
                    continue;
                }
#endif
                dots[m] = dot_add(dots[m], w, q + m * x.k);
            }
            add_groups<T, G + 1, M>(dots, get, x, block, end);
        }
    }
}

template <Format T>
PW_INLINE F to_float(Dot dot) {
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
    if constexpr (T == Q8_0) return dot_float_wide(dot);
#endif
    return dot_float(dot);
}

// acc += one block, for M rows. get<G>() gives the weights of group G.
template <Format T, int M, typename Get>
PW_INLINE void add_block(F (&acc)[M], const Get& get, const Scales& scales, const Rows<M>& x, int64_t block) {
    using L = Layout<T>;
    Dot dots[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) dots[m] = L::ZERO < 0 ? dot_zero() : dot_seed(x.seeds[(m * x.blocks + block) * 2]);
    if constexpr (L::HALVES) {
        add_groups<T, 0, M>(dots, get, x, block, 4);
        F part[M];
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            part[m] = f_mul(to_float<T>(dots[m]), scales.first);
            dots[m] = dot_seed(x.seeds[(m * x.blocks + block) * 2 + 1]);
        }
        add_groups<T, 4, M>(dots, get, x, block, 8);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            part[m] = f_fma(to_float<T>(dots[m]), scales.second, part[m]);
            acc[m] = f_fma(part[m], f_all(x.d[m * x.blocks + block]), acc[m]);
        }
    } else {
        add_groups<T, 0, M>(dots, get, x, block, 8);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
            acc[m] = f_fma(f_mul(to_float<T>(dots[m]), scales.first), f_all(x.d[m * x.blocks + block]), acc[m]);
            if constexpr (L::MINS) acc[m] = f_fma(scales.minimum, f_all(x.s[m * x.blocks + block]), acc[m]);
        }
    }
}

PW_INLINE void prefetch(const uint8_t* p) {
    __builtin_prefetch(p + AHEAD, 0, 3);
}

template <Format T>
PW_INLINE W dot_group_fix(W w) {
    return T == Q8_0 && UNSIGNED_DOTS ? w_xor(w, 0x80) : w;
}

// acc [M, 16] += blocks begin .. end, straight from the packed panel.
template <Format T, int M>
void tile_packed(const uint8_t* panel, const Quantized& quantized, int64_t first, int64_t begin, int64_t end, float* sums) {
    using L = Layout<T>;
    const Rows<M> x(quantized, first, ZERO_KIND<T>);
    F acc[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m] = f_load(sums + m * PANEL);
    const uint8_t* p = super_at<T>(panel, begin);
    for (int64_t b = begin; b < end; b += L::NB) {
        const Head head = read_head<T>(p);
        p += L::HEAD;
        for (int i = 0; i < L::NB; ++i, p += BLOCK_BYTES<T>) {
            for (int line = 0; line < BLOCK_BYTES<T>; line += 64) prefetch(p + line);
            const auto get = [p]<int G>() { return dot_group_fix<T>(group<T, G>(p)); };
            add_block<T, M>(acc, get, read_dot_scales<T>(head, p), x, b + i);
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) f_store(sums + m * PANEL, acc[m]);
}

template <Format T, int G = 0>
PW_INLINE void unpack_groups(const uint8_t* block, uint8_t* out) {
    if constexpr (G < 8) {
#if defined(__AMX_INT8__)
        w_store(out + 64 * G, signed_group<T>(group<T, G>(block)));
#else
        w_store(out + 64 * G, dot_group_fix<T>(group<T, G>(block)));
#endif
        unpack_groups<T, G + 1>(block, out);
    }
}

template <Format T>
void unpack(const uint8_t* panel, int64_t begin, int64_t end, Unpacked& out) {
    using L = Layout<T>;
    const uint8_t* p = super_at<T>(panel, begin);
    for (int64_t b = 0; b < end - begin; b += L::NB) {
        const Head head = read_head<T>(p);
        p += L::HEAD;
        for (int i = 0; i < L::NB; ++i, p += BLOCK_BYTES<T>) {
            const Scales scales = read_dot_scales<T>(head, p);
            f_store(out.first[b + i], scales.first);
            if constexpr (L::HALVES) f_store(out.second[b + i], scales.second);
            if constexpr (L::MINS) f_store(out.minimum[b + i], scales.minimum);
            unpack_groups<T>(p, out.w[b + i][0]);
        }
    }
}

#if !defined(__AMX_INT8__)
// acc [TILE, 16] += blocks begin .. end from what was unpacked of them.
template <Format T>
void tile_unpacked(const Unpacked& unpacked, const Quantized& quantized, int64_t first, int64_t begin, int64_t end, float* sums) {
    const Rows<TILE> x(quantized, first, ZERO_KIND<T>);
    F acc[TILE];
#pragma GCC unroll 8
    for (int m = 0; m < TILE; ++m) acc[m] = f_load(sums + m * PANEL);
    for (int64_t b = begin; b < end; ++b) {
        const int at = int(b - begin);
        const Scales scales{f_load(unpacked.first[at]), Layout<T>::HALVES ? f_load(unpacked.second[at]) : f_zero(),
                            Layout<T>::MINS ? f_load(unpacked.minimum[at]) : f_zero()};
        const uint8_t* w = unpacked.w[at][0];
        const auto get = [w]<int G>() { return w_load(w + 64 * G); };
        add_block<T, TILE>(acc, get, scales, x, b);
    }
#pragma GCC unroll 8
    for (int m = 0; m < TILE; ++m) f_store(sums + m * PANEL, acc[m]);
}

#endif

// n rows, rounded up to 1, 2, 4 (or 8): what is computed too much lies in padding.
template <Format T>
PW_INLINE void few_rows(const uint8_t* panel, const Quantized& x, int64_t first, int64_t n, int64_t begin, int64_t end, float* sums) {
    if (n == 1) tile_packed<T, 1>(panel, x, first, begin, end, sums);
    else if (n == 2) tile_packed<T, 2>(panel, x, first, begin, end, sums);
    else if (TILE == 4 || n <= 4) tile_packed<T, 4>(panel, x, first, begin, end, sums);
    else tile_packed<T, TILE>(panel, x, first, begin, end, sums);
}

template <Format T>
void panel_product(const uint8_t* panel, const Quantized& x, int64_t first, int64_t n_rows, float* acc) {
    const int64_t padded = (n_rows + PANEL - 1) / PANEL * PANEL;
    for (int64_t i = 0; i < padded; ++i) f_store(acc + i * PANEL, f_zero());
    if (n_rows <= TILE) {
        few_rows<T>(panel, x, first, n_rows, 0, x.blocks, acc);
        return;
    }
    Unpacked unpacked;
#if defined(__AMX_INT8__)
    const Tiles tiles;
#endif
    for (int64_t begin = 0; begin < x.blocks; begin += CHUNK) {
        const int64_t end = begin + CHUNK < x.blocks ? begin + CHUNK : x.blocks;
        unpack<T>(panel, begin, end, unpacked);
        int64_t m = 0;
#if defined(__AMX_INT8__)
        for (; n_rows - m > 4; m += TILE_ROWS) tile_rows<T>(unpacked, x, first + m, begin, end, acc + m * PANEL);
#else
        for (; m + TILE <= n_rows; m += TILE) tile_unpacked<T>(unpacked, x, first + m, begin, end, acc + m * PANEL);
#endif
        if (m < n_rows) few_rows<T>(panel, x, first + m, n_rows - m, begin, end, acc + m * PANEL);
    }
}

// Float32 ------------------------------------------------------------------------------------------------------------

constexpr int EXACT_CHUNK = 256;  // values of K in float32 at once: 16 KiB for a panel

template <Format T, int G = 0>
PW_INLINE void unpack_floats(const uint8_t* block, const Scales& scales, float* out) {
    using L = Layout<T>;
    if constexpr (G < 8) {
        const F scale = L::HALVES && G >= 4 ? scales.second : scales.first;
        W w = group<T, G>(block);
        if constexpr (T == Q4_0) w = w_sub(w, 8);
        if constexpr (T == Q5_0) w = w_sub(w, 16);
        if constexpr (T == Q6_K) w = w_sub(w, 32);
        const auto put = [&](int i, F integers) {
            F value = f_mul(integers, scale);
            if constexpr (L::MINS) value = f_fma(f_all(1.0f), value, scales.minimum);
            f_store(out + (4 * G + i) * PANEL, value);
        };
        put(0, w_float<0>(w));
        put(1, w_float<1>(w));
        put(2, w_float<2>(w));
        put(3, w_float<3>(w));
        unpack_floats<T, G + 1>(block, scales, out);
    }
}

// Values begin .. end of K of a panel in float32, [end - begin, 16].
template <Format T>
PW_INLINE const float* as_floats(const uint8_t* panel, int64_t begin, int64_t end, float* out) {
    if constexpr (T == F32) {
        return (const float*)panel + begin * PANEL;
    } else if constexpr (T == F16 || T == BF16) {
        const uint8_t* p = panel + begin * PANEL * 2;
        for (int64_t k = 0; k < end - begin; ++k) f_store(out + k * PANEL, T == F16 ? f_half(p + k * 32) : f_bf16(p + k * 32));
        return out;
    } else {
        using L = Layout<T>;
        const uint8_t* p = super_at<T>(panel, begin / BLOCK);
        for (int64_t b = 0; b < (end - begin) / BLOCK; b += L::NB) {
            const Head head = read_head<T>(p);
            p += L::HEAD;
            for (int i = 0; i < L::NB; ++i, p += BLOCK_BYTES<T>) {
                unpack_floats<T>(p, read_scales<T>(head, p), out + (b + i) * BLOCK * PANEL);
            }
        }
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
    alignas(64) float buffer[T == F32 ? 1 : EXACT_CHUNK * PANEL];
    for (int64_t m = 0; m < n_rows; ++m) f_store(acc + m * PANEL, f_zero());
    for (int64_t begin = 0; begin < k; begin += EXACT_CHUNK) {
        const int64_t end = begin + EXACT_CHUNK < k ? begin + EXACT_CHUNK : k;
        const float* w = as_floats<T>(panel, begin, end, buffer);
        int64_t m = 0;
        for (; m + TILE <= n_rows; m += TILE) tile_exact<TILE>(w, x + m * x_stride + begin, x_stride, end - begin, acc + m * PANEL);
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

// Epilogues ------------------------------------------------------------------------------------------------------------

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

const LinearKernels linear = {
    quantize,
    {panel_product<Q4_0>, panel_product<Q4_1>, panel_product<Q5_0>, panel_product<Q5_1>, panel_product<Q8_0>, panel_product<Q4_K>,
     panel_product<Q5_K>, panel_product<Q6_K>, nullptr, nullptr, nullptr},
    {panel_exact<Q4_0>, panel_exact<Q4_1>, panel_exact<Q5_0>, panel_exact<Q5_1>, panel_exact<Q8_0>, panel_exact<Q4_K>, panel_exact<Q5_K>,
     panel_exact<Q6_K>, panel_exact<F32>, panel_exact<F16>, panel_exact<BF16>},
    finish,
    finish_gated,
    {panel_row<Q4_0>, panel_row<Q4_1>, panel_row<Q5_0>, panel_row<Q5_1>, panel_row<Q8_0>, panel_row<Q4_K>, panel_row<Q5_K>, panel_row<Q6_K>,
     panel_row<F32>, panel_row<F16>, panel_row<BF16>},
};

}  // namespace pagewell::PW_ISA
