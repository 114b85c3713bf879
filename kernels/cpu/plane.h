// From what Python passes to a Plane.
#pragma once

#include <cstdint>
#include <vector>

#include "cache.h"

namespace pagewell {

// strides: of n_blocks, block_size, heads, D, in elements. Throws std::out_of_range for fewer than four.
Plane plane(uintptr_t data, const std::vector<int64_t>& strides);

}  // namespace pagewell
