// The paged KV cache of one layer, and the operators that write it.
#pragma once

#include <cstdint>

#include "isa.h"

namespace pagewell {

enum class Float : int64_t { f32, f16, bf16 };

inline constexpr int64_t size_of(Float type) {
    return type == Float::f32 ? 4 : 2;
}

// Keys or values, [n_blocks, block_size, heads, D]; strides in elements.
struct Plane {
    char* data;
    int64_t block, token, head, dim;
};

struct Cache {
    Plane k, v;
    Float type;
    int64_t block_size;
};

struct CacheKernels {
    // Rotate one head: dims 0 .. 2 * half by cos and sin, [half] each; the rest of its `size` dims stays. out may be x.
    void (*rotate)(const float* x, const float* cos, const float* sin, float* out, int64_t half, int64_t size);
    // x[i] -> to[i * step], converted to the cache's type
    void (*write)(const float* x, void* to, int64_t step, int64_t size, Float type);
};

PAGEWELL_TABLES(CacheKernels, cache)

}  // namespace pagewell
