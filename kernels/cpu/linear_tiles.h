// Panels times many rows with AMX tiles: 16 rows of x by 16 rows of the weight by one block at a time, since each block has its own scales.
// Included by linear_kernels.cpp on the level that has tiles.
#pragma once

#include "linear_formats.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int TILE_ROWS = 16;
// Blocks whose dots are under way while one's are scaled: a tile takes 100 cycles from its operands to memory.
constexpr int AHEAD_BLOCKS = 2;

// Tiles: 0 and 1 sums, 2 and 3 x and weights of a block (K = 32), 4 and 5 of half a block (K = 16).
struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t bytes_per_row[16] = {64, 64, 32, 64, 16, 64};
    uint8_t rows[16] = {16, 16, 16, 8, 16, 4};
};

// Static, since gcc's _tile_loadconfig says that it reads eight bytes: of a local one the rest may never be written.
constexpr TileConfig TILE_CONFIG;

class Tiles {
  public:
    Tiles() { _tile_loadconfig(&TILE_CONFIG); }
    ~Tiles() { _tile_release(); }
};

// The integers of a group without their zero point, as signed bytes.
template <Format T>
PW_INLINE W signed_group(W w) {
    constexpr int KIND = SIGNED<T> ? -1 : Layout<T>::ZERO;
    if constexpr (KIND < 0) return w;
    else return w_sub(w, ZERO_POINT[KIND < 0 ? 0 : KIND]);
}

// gcc 12's tile intrinsics do not say that they read and write memory.
PW_INLINE void memory_as_written() {
    asm volatile("" ::: "memory");
}

// dots [16, 16] (and of the second half, 256 further) = x of 16 rows times a block of weights.
template <Format T>
PW_INLINE void tile_dots(const int8_t* q, int64_t k, const uint8_t* w, int32_t* dots) {
    memory_as_written();
    if constexpr (Layout<T>::HALVES) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_loadd(4, q, k);
        _tile_loadd(5, w, 64);
        _tile_dpbssd(0, 4, 5);
        _tile_stored(0, dots, 64);
        _tile_loadd(4, q + 16, k);
        _tile_loadd(5, w + 256, 64);
        _tile_dpbssd(1, 4, 5);
        _tile_stored(1, dots + 256, 64);
    } else {
        _tile_zero(0);
        _tile_loadd(2, q, k);
        _tile_loadd(3, w, 64);
        _tile_dpbssd(0, 2, 3);
        _tile_stored(0, dots, 64);
    }
    memory_as_written();
}

// acc [16, 16] += blocks begin .. end from what was unpacked of them, for rows first .. first + 16 of x.
template <Format T, typename Unpacked>
void tile_rows(const Unpacked& unpacked, const Quantized& x, int64_t first, int64_t begin, int64_t end, float* sums) {
    using L = Layout<T>;
    const int8_t* q = x.q + first * x.k + begin * BLOCK;
    const float* d = x.d + first * x.blocks + begin;
    const float* s = x.s + first * x.blocks + begin;
    const int64_t blocks = x.blocks;
    alignas(64) int32_t dots[4][2 * 256];
    F acc[TILE_ROWS];
#pragma GCC unroll 16
    for (int m = 0; m < TILE_ROWS; ++m) acc[m] = f_load(sums + m * PANEL);
    const int n = int(end - begin);
    for (int b = 0; b < AHEAD_BLOCKS && b < n; ++b) tile_dots<T>(q + b * BLOCK, x.k, unpacked.w[b][0], dots[b]);
    for (int b = 0; b < n; ++b) {
        const int next = b + AHEAD_BLOCKS;
        if (next < n) tile_dots<T>(q + next * BLOCK, x.k, unpacked.w[next][0], dots[next & 3]);
        const int32_t* dot = dots[b & 3];
        const F scale = f_load(unpacked.first[b]);
        const F second = L::HALVES ? f_load(unpacked.second[b]) : f_zero(), minimum = L::MINS ? f_load(unpacked.minimum[b]) : f_zero();
#pragma GCC unroll 16
        for (int m = 0; m < TILE_ROWS; ++m) {
            F part = f_mul({_mm512_cvtepi32_ps(_mm512_load_si512(dot + m * PANEL))}, scale);
            if constexpr (L::HALVES) part = f_fma({_mm512_cvtepi32_ps(_mm512_load_si512(dot + 256 + m * PANEL))}, second, part);
            acc[m] = f_fma(part, f_all(d[m * blocks + b]), acc[m]);
            if constexpr (L::MINS) acc[m] = f_fma(minimum, f_all(s[m * blocks + b]), acc[m]);
        }
    }
#pragma GCC unroll 16
    for (int m = 0; m < TILE_ROWS; ++m) f_store(sums + m * PANEL, acc[m]);
}

}  // namespace
}  // namespace pagewell::PW_ISA
