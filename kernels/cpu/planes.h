// From what Python passes to a Cache, as planes.py makes it.
#pragma once

#include <cstdint>
#include <vector>

#include "cache.h"

namespace pagewell {

// data and strides (of n_blocks, block_size, heads, D, in elements) of k and v, and for s8 of k's and v's scales.
// Throws std::out_of_range where any are missing, std::invalid_argument for heads of more than MOST_HEAD_SIZE.
Cache cache(const std::vector<uintptr_t>& data, const std::vector<std::vector<int64_t>>& strides, int64_t head_size,
            int64_t block_size, int64_t type);

}  // namespace pagewell
