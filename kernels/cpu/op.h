// Operators as objects: built once from addresses and constants, run for any number of rows, one by one or as a tape.
#pragma once

#include <cstdint>

namespace pagewell {

// What changes from step to step; everything else is fixed when an operator is built.
struct Sizes {
    int64_t n_rows;  // rows of activations
    int64_t n_seqs;  // sequences, for operators that walk block tables
};

class Op {
  public:
    virtual ~Op() = default;
    virtual void run(const Sizes& sizes) const = 0;
};

// An address as Python passes it.
template <typename T>
inline T* address(uintptr_t value) {
    return reinterpret_cast<T*>(value);
}

}  // namespace pagewell
