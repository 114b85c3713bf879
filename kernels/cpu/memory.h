// Memory for weights, in large pages where the system has them, freed with the last weight in it; and memory to work in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace pagewell {

template <typename T>
constexpr T round_up(T n, T unit) {
    return (n + unit - 1) / unit * unit;
}

// n_bytes, aligned to a cache line. Throws std::bad_alloc.
std::shared_ptr<uint8_t> weight_memory(size_t n_bytes);

// Memory that grows and stays, aligned to a cache line.
class Buffer {
  public:
    Buffer() = default;
    ~Buffer();
    Buffer(const Buffer&) = delete;
    Buffer& operator=(const Buffer&) = delete;

    // At least n_bytes, valid until the next call that asks for more; what was there is lost then. Throws std::bad_alloc.
    uint8_t* get(size_t n_bytes);

  private:
    void release();

    uint8_t* data_ = nullptr;
    size_t size_ = 0;
};

// From a Buffer of the calling thread, valid until its next call.
uint8_t* scratch(size_t n_bytes);

}  // namespace pagewell
