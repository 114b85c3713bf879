// Memory for weights: large pages where the system has them, freed with the last weight in it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagewell {

// n_bytes, aligned to a cache line. Throws std::bad_alloc.
std::shared_ptr<uint8_t> weight_memory(size_t n_bytes);

// Scratch of the calling thread, aligned to a cache line, valid until its next call.
uint8_t* scratch(size_t n_bytes);

}  // namespace pagewell
