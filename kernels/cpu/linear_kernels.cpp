#include "linear.h"

#include <utility>

#include "linear_epilogue.h"
#include "linear_exact.h"
#include "linear_formats.h"

namespace pagewell::PW_ISA {
namespace {

// Whether registers hold the dots of two blocks.
#if defined(__AVX512F__)
constexpr bool TWO_AT_ONCE = true;
#else
constexpr bool TWO_AT_ONCE = false;
#endif
// Blocks of a panel that are unpacked at once, for more rows than a tile: 12 KiB of integers and their scales stay in the nearest cache. Whole superblocks.
constexpr int CHUNK = 24, SUPER = 8;

// Blocks whose values are all smaller are taken for zeros: 127 over such a number is none.
constexpr float LEAST = 1e-36f;

// Up to so many rows read the packed panel, each tile of them anew. Measured on 2 to 32 rows: unpacking for 9 to 16 costs AVX-512 more than it
// saves (5 to 20%), bytes need none, and narrow formats on 5 to 8 rows of AVX2 gain 10% by it.
template <Format T>
constexpr int FEW_ROWS = TWO_AT_ONCE || SIGNED<T> ? 2 * TILE : TILE;

struct Unpacked {
    alignas(64) uint8_t w[CHUNK][8][64];
    alignas(64) float first[CHUNK][16], second[CHUNK][16], minimum[CHUNK][16], second_minimum[CHUNK][16];
};

void quantize(const float* x, const Quantized& quantized, int64_t row) {
    constexpr int N = f32v::N, VECTORS = BLOCK / N;
    int64_t at = quantized.at(row);
    for (int64_t b = 0; b < quantized.blocks; ++b, x += BLOCK, at += quantized.group) {
        f32v v[VECTORS], most = zero();
        for (int i = 0; i < VECTORS; ++i) {
            v[i] = load(x + i * N);
            most = max_magnitude(most, v[i]);
        }
        const float largest = reduce_max_magnitude(most);
        const f32v inverse = set1(largest >= LEAST ? 127.0f / largest : 0.0f);
        for (int i = 0; i < VECTORS; ++i) v[i] = mul(v[i], inverse);
        const PairSums sums = store_s8(quantized.q + at * BLOCK, v);
        // An infinity or NaN is no integer; d carries it on.
        const float d = largest - largest == 0.0f ? largest / 127.0f : largest - largest;
        quantized.d[at] = d;
        quantized.s[at] = d * float(sums.low[0] + sums.high[0] + sums.low[1] + sums.high[1]);
        if (quantized.zeros & HALF_SUMS) {
            for (int i = 0; i < 2; ++i) quantized.halves[2 * at + i] = d * float(sums.low[i] + sums.high[i]);
        }
        for (int zero_kind = 0; zero_kind < N_ZEROS; ++zero_kind) {
            if (!(quantized.zeros >> zero_kind & 1)) continue;
            int32_t* seeds = quantized.seeds + (zero_kind * quantized.rows * quantized.blocks + at) * 2;
            const int point = -ZERO_POINT[zero_kind];
            if (zero_kind >= HALVES_4) {
                for (int i = 0; i < 2; ++i) seeds[i] = dot_seed_of(point * sums.low[i], point * sums.high[i]);
            } else {
                seeds[0] = dot_seed_of(point * (sums.low[0] + sums.low[1]), point * (sums.high[0] + sums.high[1]));
            }
        }
    }
}

// The rows of x that a tile works on, at one block.
struct Rows {
    const int8_t* q;  // BLOCK for each row
    const float* d;
    const float* s;
    const float* halves;
    const int32_t* seeds;
    int64_t group;

    PW_INLINE Rows(const Quantized& x, int64_t first, int64_t block, int zero_kind) : group(x.group) {
        const int64_t at = x.at(first) + block * group;
        q = x.q + at * BLOCK;
        d = x.d + at;
        s = x.s + at;
        halves = x.halves + at * 2;
        seeds = x.seeds + (zero_kind * x.rows * x.blocks + at) * 2;
    }

    PW_INLINE void next() {
        q += group * BLOCK;
        d += group;
        s += group;
        halves += group * 2;
        seeds += group * 2;
    }
};

template <Format T>
constexpr unsigned zeros_of() {
    if constexpr (T >= F32) return 0;
    else if constexpr (Layout<T>::HALVES && Layout<T>::MINS) return HALF_SUMS;
    else if constexpr (Layout<T>::ZERO < 0) return 0;
    else return 1u << Layout<T>::ZERO;
}

template <Format T>
constexpr int ZERO_KIND = Layout<T>::ZERO < 0 ? 0 : Layout<T>::ZERO;

template <Format T>
PW_INLINE Dot add_to(Dot dot, W w, const int8_t* q) {
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
    if constexpr (SIGNED<T>) return dot_add_signed(dot, w, q);
#endif
    return dot_add(dot, w, q);
}

template <Format T, int G, int M, typename Get>
PW_INLINE void add_group(Dot (&dots)[M], const Get& get, const int8_t* q) {
    const W w = get.template operator()<G>();
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) dots[m] = add_to<T>(dots[m], w, q + m * BLOCK + 4 * G);
}

// Groups BEGIN .. END of a block.
template <Format T, int BEGIN, int END, int M, typename Get>
PW_INLINE void add_groups(Dot (&dots)[M], const Get& get, const int8_t* q) {
    if constexpr (BEGIN < END) {
        add_group<T, BEGIN>(dots, get, q);
        add_groups<T, BEGIN + 1, END>(dots, get, q);
    }
}

// The same of two blocks, or halves, OTHER groups apart, in turn: there are then sums enough to wait for none.
template <Format T, int BEGIN, int END, int OTHER, int M, typename Get, typename GetOther>
PW_INLINE void add_groups_of_two(Dot (&dots)[M], Dot (&others)[M], const Get& get, const GetOther& get_other, const int8_t* q, const int8_t* q_other) {
    if constexpr (BEGIN < END) {
        add_group<T, BEGIN>(dots, get, q);
        add_group<T, BEGIN + OTHER>(others, get_other, q_other);
        add_groups_of_two<T, BEGIN + 1, END, OTHER>(dots, others, get, get_other, q, q_other);
    }
}

template <Format T>
PW_INLINE F to_float(Dot dot) {
#if defined(__AVX2__) && !defined(__AVX512F__) && !defined(__AVXVNNI__)
    if constexpr (SIGNED<T>) return dot_float_wide(dot);
#endif
    return dot_float(dot);
}

// What the dots of M rows start from; half: of the second half.
template <Format T, int M>
PW_INLINE void start(Dot (&dots)[M], const Rows& x, int half = 0) {
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) dots[m] = Layout<T>::ZERO < 0 ? dot_zero() : dot_seed(x.seeds[2 * m + half]);
}

// acc += a block whose dots are done, of its second half the others.
template <Format T, int M>
PW_INLINE void add_scaled(F (&acc)[M], const Dot (&dots)[M], const Dot (&others)[M], const Scales& scales, const Rows& x) {
    using L = Layout<T>;
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) {
        F part = f_mul(to_float<T>(dots[m]), scales.first);
        if constexpr (L::HALVES) part = f_fma(to_float<T>(others[m]), scales.second, part);
        acc[m] = f_fma(part, f_all(x.d[m]), acc[m]);
        if constexpr (L::MINS) acc[m] = f_fma(scales.minimum, f_all(L::HALVES ? x.halves[2 * m] : x.s[m]), acc[m]);
        if constexpr (L::MINS && L::HALVES) acc[m] = f_fma(scales.second_minimum, f_all(x.halves[2 * m + 1]), acc[m]);
    }
}

// acc += one block, for M rows. get<G>() gives the weights of group G.
template <Format T, int M, typename Get>
PW_INLINE void add_block(F (&acc)[M], const Get& get, const Scales& scales, const Rows& x) {
    Dot dots[M];
    start<T>(dots, x);
    if constexpr (!Layout<T>::HALVES) {
        add_groups<T, 0, 8>(dots, get, x.q);
        add_scaled<T>(acc, dots, dots, scales, x);
    } else {
        Dot others[M];
        start<T>(others, x, 1);
        if constexpr (TWO_AT_ONCE) {
            add_groups_of_two<T, 0, 4, 4>(dots, others, get, get, x.q, x.q);
        } else {
            add_groups<T, 0, 4>(dots, get, x.q);
            add_groups<T, 4, 8>(others, get, x.q);
        }
        add_scaled<T>(acc, dots, others, scales, x);
    }
}

// acc += a block and the one after it.
template <Format T, int M, typename Get, typename GetNext>
PW_INLINE void add_two_blocks(F (&acc)[M], const Get& get, const Scales& scales, const GetNext& get_next, const Scales& next_scales, Rows x) {
    if constexpr (TWO_AT_ONCE && !Layout<T>::HALVES) {
        Rows next = x;
        next.next();
        Dot dots[M], others[M];
        start<T>(dots, x);
        start<T>(others, next);
        add_groups_of_two<T, 0, 8, 0>(dots, others, get, get_next, x.q, next.q);
        add_scaled<T>(acc, dots, dots, scales, x);
        add_scaled<T>(acc, others, others, next_scales, next);
    } else {
        add_block<T>(acc, get, scales, x);
        x.next();
        add_block<T>(acc, get_next, next_scales, x);
    }
}

// acc [M, 16] += blocks begin .. end, straight from the packed panel.
template <Format T, int M>
void tile_packed(const uint8_t* panel, const Quantized& quantized, int64_t first, int64_t begin, int64_t end, float* sums) {
    using L = Layout<T>;
    Rows x(quantized, first, begin, ZERO_KIND<T>);
    F acc[M];
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) acc[m] = f_load(sums + m * PANEL);
    const auto weights = [](const uint8_t* p) { return [p]<int G>() { return dot_group<T, G>(p); }; };
    constexpr int BYTES = BLOCK_BYTES<T>;
    const uint8_t* p = super_at<T>(panel, begin);
    const auto two = [&](const Head& head, const uint8_t* q, const Head& next_head, const uint8_t* next) {
        for (int line = 0; line < 2 * BYTES; line += 64) prefetch(q + line);
        add_two_blocks<T>(acc, weights(q), read_dot_scales<T>(head, q), weights(next), read_dot_scales<T>(next_head, next), x);
        x.next();
        x.next();
    };
    int64_t b = begin;
    if constexpr (TWO_AT_ONCE && L::NB == 1) {
        for (; b + 1 < end; b += 2, p += 2 * SUPER_BYTES<T>) {
            const uint8_t* next = p + SUPER_BYTES<T>;
            two(read_head<T>(p), p + L::HEAD, read_head<T>(next), next + L::HEAD);
        }
    }
    for (; b < end; b += L::NB, p += SUPER_BYTES<T>) {
        const Head head = read_head<T>(p);
        const uint8_t* q = p + L::HEAD;
        if constexpr (TWO_AT_ONCE && L::NB % 2 == 0) {
            for (int i = 0; i < L::NB; i += 2, q += 2 * BYTES) two(head, q, head, q + BYTES);
        } else {
            for (int i = 0; i < L::NB; ++i, q += BYTES, x.next()) {
                for (int line = 0; line < BYTES; line += 64) prefetch(q + line);
                add_block<T>(acc, weights(q), read_dot_scales<T>(head, q), x);
            }
        }
    }
#pragma GCC unroll 8
    for (int m = 0; m < M; ++m) f_store(sums + m * PANEL, acc[m]);
}

template <Format T, int G = 0>
PW_INLINE void unpack_groups(const uint8_t* block, uint8_t* out) {
    if constexpr (G < 8) {
        w_store(out + 64 * G, dot_group<T, G>(block));
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
            if constexpr (L::MINS && L::HALVES) f_store(out.second_minimum[b + i], scales.second_minimum);
            unpack_groups<T>(p, out.w[b + i][0]);
        }
    }
}

// acc [TILE, 16] += blocks begin .. end from what was unpacked of them.
template <Format T>
void tile_unpacked(const Unpacked& unpacked, const Quantized& quantized, int64_t first, int64_t begin, int64_t end, float* sums) {
    Rows x(quantized, first, begin, ZERO_KIND<T>);
    F acc[TILE];
#pragma GCC unroll 8
    for (int m = 0; m < TILE; ++m) acc[m] = f_load(sums + m * PANEL);
    const auto weights = [&](int at) { return [w = unpacked.w[at][0]]<int G>() { return w_load(w + 64 * G); }; };
    const auto scales = [&](int at) {
        return Scales{f_load(unpacked.first[at]), Layout<T>::HALVES ? f_load(unpacked.second[at]) : f_zero(),
                      Layout<T>::MINS ? f_load(unpacked.minimum[at]) : f_zero(),
                      Layout<T>::MINS && Layout<T>::HALVES ? f_load(unpacked.second_minimum[at]) : f_zero()};
    };
    const int n = int(end - begin);
    int at = 0;
    if constexpr (TWO_AT_ONCE) {
        for (; at + 1 < n; at += 2, x.next(), x.next()) add_two_blocks<T>(acc, weights(at), scales(at), weights(at + 1), scales(at + 1), x);
    }
    for (; at < n; ++at, x.next()) add_block<T>(acc, weights(at), scales(at), x);
#pragma GCC unroll 8
    for (int m = 0; m < TILE; ++m) f_store(sums + m * PANEL, acc[m]);
}

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
    if (n_rows <= FEW_ROWS<T>) {
        for (int64_t m = 0; m < n_rows; m += TILE) {
            few_rows<T>(panel, x, first + m, n_rows - m < TILE ? n_rows - m : TILE, 0, x.blocks, acc + m * PANEL);
        }
        return;
    }
    Unpacked unpacked;
    // Chunks of about one size: a short one at the end would pay for its sums and little else.
    const int64_t n_chunks = (x.blocks + CHUNK - 1) / CHUNK, fair = (x.blocks + n_chunks - 1) / n_chunks;
    const int64_t chunk = (fair + SUPER - 1) / SUPER * SUPER;
    for (int64_t begin = 0; begin < x.blocks; begin += chunk) {
        const int64_t end = begin + chunk < x.blocks ? begin + chunk : x.blocks;
        unpack<T>(panel, begin, end, unpacked);
        int64_t m = 0;
        for (; m + TILE <= n_rows; m += TILE) tile_unpacked<T>(unpacked, x, first + m, begin, end, acc + m * PANEL);
        if (m < n_rows) few_rows<T>(panel, x, first + m, n_rows - m, begin, end, acc + m * PANEL);
    }
}

template <Format T>
constexpr auto panel_of() -> decltype(&panel_product<Q4_0>) {
    if constexpr (T < F32) return panel_product<T>;
    else return nullptr;
}

template <Format T>
constexpr int panel_bytes() {
    if constexpr (T == F32) return PANEL * 4;
    else if constexpr (T == F16 || T == BF16) return PANEL * 2;
    else return SUPER_BYTES<T>;
}

template <int... T>
constexpr LinearKernels kernels_of(std::integer_sequence<int, T...>) {
    static_assert(((panel_bytes<Format(T)>() == PANEL_BYTES[T]) && ...));
    return {quantize,
            {zeros_of<Format(T)>()...},
            {panel_of<Format(T)>()...},
            {panel_exact<Format(T)>...},
            finish,
            finish_gated,
            {panel_row<Format(T)>...}};
}

}  // namespace

const LinearKernels linear = kernels_of(std::make_integer_sequence<int, N_FORMATS>());

}  // namespace pagewell::PW_ISA
