// The paged KV cache of one layer, and the operators that write it.
#pragma once

#include <cstdint>

#include "isa.h"

namespace pagewell {

// Dims of a head at most, as DeepSeek's latent keys have them: scratch memory has room for as many.
inline constexpr int64_t MOST_HEAD_SIZE = 576;

// s8: whole numbers from -127 to 127, times a scale for each token and head. f8: E4M3 of arXiv:2209.05433.
enum class CacheType : int64_t { f32, f16, bf16, s8, f8 };

inline constexpr int64_t size_of(CacheType type) {
    switch (type) {
        case CacheType::f32: return 4;
        case CacheType::f16:
        case CacheType::bf16: return 2;
        default: return 1;
    }
}

// Keys or values, [n_blocks, block_size, heads, D]; strides in elements.
struct Plane {
    char* data;
    int64_t block, token, head, dim;
};

struct Cache {
    Plane k, v;
    Plane k_scales, v_scales;  // float32, of s8 only; they have no dims
    CacheType type;
    int64_t block_size;
};

struct CacheKernels {
    // Rotate one head: dims 0 .. 2 * half by cos and sin, [half] each; the rest of its `size` dims stays.
    void (*rotate)(const float* x, const float* cos, const float* sin, float* out, int64_t half, int64_t size);
    // x[i] -> to[i * step], converted to a cache's type other than s8; to f16 within -65504 .. 65504, to f8
    // within -448 .. 448.
    void (*write)(const float* x, void* to, int64_t step, int64_t size, CacheType type);
    // x[i] -> to[i * step], x over the scale rounded to nearest even; returns the scale, max |x| / 127. All are 0 where the scale
    // is 0, or NaN because a value is not finite. The same bits on all levels.
    float (*quantize)(const float* x, int8_t* to, int64_t step, int64_t size);
};

PAGEWELL_TABLES(CacheKernels, cache)

}  // namespace pagewell
