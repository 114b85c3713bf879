// What this machine can do at most: reading memory, multiplying and adding. Operators are judged by it.
#pragma once

#include <cstdint>

#include "isa.h"

namespace pagewell {

struct LimitsKernels {
    // Read all of it once, prefetching `ahead` bytes ahead where that is not 0. Whole kilobytes, aligned to 64 bytes.
    uint64_t (*read)(const uint8_t* data, int64_t n_bytes, int64_t ahead);
    // Multiply and add in registers, n_rounds times f32_ops operations; a multiplication and an addition count as two.
    float (*f32)(int64_t n_rounds);
    int64_t f32_ops;
    // The same for 8-bit integers into sums of 32 bits, by the fastest instruction of the level.
    int32_t (*int8)(int64_t n_rounds);
    int64_t int8_ops;
};

PAGEWELL_TABLES(LimitsKernels, limits)

}  // namespace pagewell
