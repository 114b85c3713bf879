#include "cache.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include <nanobind/stl/pair.h>

#include "binding.h"
#include "op.h"
#include "planes.h"
#include "pool.h"

namespace pagewell {

Cache cache(const std::vector<uintptr_t>& data, const std::vector<std::vector<int64_t>>& strides, int64_t head_size,
            int64_t block_size, int64_t type) {
    if (head_size > MOST_HEAD_SIZE) {
        throw std::invalid_argument("Heads have at most " + std::to_string(MOST_HEAD_SIZE) + " dims, not " +
                                    std::to_string(head_size) + ".");
    }
    const auto plane = [&](size_t i) -> Plane {
        const std::vector<int64_t>& steps = strides.at(i);
        return {address<char>(data.at(i)), steps.at(0), steps.at(1), steps.at(2), steps.at(3)};
    };
    const bool scaled = CacheType(type) == CacheType::s8;
    return {plane(0), plane(1), scaled ? plane(2) : Plane{}, scaled ? plane(3) : Plane{}, CacheType(type), block_size};
}

namespace {

// Rows of one task at most: neighbours of a sequence share cache lines of their block, which two threads had better not
// write at once.
constexpr int64_t MOST_ROWS = 16;

// q [n, heads, D], k [n, kv_heads, D] and v [n, kv_heads, Dv]: rows `stride` apart, heads D apart.
struct Rows {
    const float* data;
    int64_t stride;
    const float* head(int64_t row, int64_t head, int64_t size) const { return data + row * stride + head * size; }
};

class RopeAndWriteKV : public Op {
  public:
    RopeAndWriteKV(uintptr_t out, uintptr_t q, uintptr_t k, uintptr_t v, int64_t q_stride, int64_t k_stride, int64_t v_stride,
                   int64_t heads, int64_t kv_heads, int64_t size, int64_t value_size, uintptr_t positions, uintptr_t cos, uintptr_t sin,
                   int64_t half, uintptr_t slots, const std::vector<uintptr_t>& planes,
                   const std::vector<std::vector<int64_t>>& strides, int64_t block_size, int64_t type, bool latent)
        : out_(address<float>(out)), q_{address<const float>(q), q_stride}, k_{address<const float>(k), k_stride},
          v_{address<const float>(v), v_stride}, heads_(heads), kv_heads_(kv_heads), size_(size), value_size_(value_size), latent_(latent),
          positions_(address<const int64_t>(positions)), cos_(address<const float>(cos)), sin_(address<const float>(sin)),
          half_(half), slots_(address<const int64_t>(slots)),
          cache_(cache(planes, strides, std::max(size, value_size), block_size, type)) {}

    void run(const Sizes& sizes) const override {
        const int64_t per_task = std::clamp<int64_t>(sizes.n_rows / (2 * pool().n_threads()), 1, MOST_ROWS);
        pool().run((sizes.n_rows + per_task - 1) / per_task, [&](int64_t task) {
            for (int64_t row = task * per_task; row < std::min(sizes.n_rows, (task + 1) * per_task); ++row) one(row);
        });
    }

  private:
    void one(int64_t row) const {
        const CacheKernels& kernels = cache_kernels();
        const float* cos = cos_ + positions_[row] * half_;
        const float* sin = sin_ + positions_[row] * half_;
        for (int64_t head = 0; head < heads_; ++head) {
            kernels.rotate(q_.head(row, head, size_), cos, sin, out_ + (row * heads_ + head) * size_, half_, size_);
        }
        const int64_t slot = slots_[row];
        if (slot < 0 || k_.data == nullptr) return;
        const int64_t block = slot / cache_.block_size, offset = slot % cache_.block_size;
        const int64_t key_size = latent_ ? size_ - value_size_ : size_;
        for (int64_t head = 0; head < kv_heads_; ++head) {
            alignas(64) float turned[MOST_HEAD_SIZE];
            const float* value = v_.head(row, head, value_size_);
            kernels.rotate(k_.head(row, head, key_size), cos, sin, turned, half_, key_size);
            if (latent_) {
                std::memcpy(turned + key_size, value, static_cast<size_t>(value_size_) * sizeof(float));
            } else {
                write(value, cache_.v, cache_.v_scales, block, offset, head, value_size_);
            }
            write(turned, cache_.k, cache_.k_scales, block, offset, head, size_);
        }
    }

    void write(const float* x, const Plane& to, const Plane& scales, int64_t block, int64_t offset, int64_t head,
               int64_t size) const {
        const auto place = [&](const Plane& plane) { return block * plane.block + offset * plane.token + head * plane.head; };
        char* values = to.data + place(to) * size_of(cache_.type);
        if (cache_.type == CacheType::s8) {
            const float scale = cache_kernels().quantize(x, reinterpret_cast<int8_t*>(values), to.dim, size);
            reinterpret_cast<float*>(scales.data)[place(scales)] = scale;
        } else {
            cache_kernels().write(x, values, to.dim, size, cache_.type);
        }
    }

    float* out_;
    Rows q_, k_, v_;
    int64_t heads_, kv_heads_, size_, value_size_;
    bool latent_;  // values are the end of the keys: there is one plane
    const int64_t* positions_;
    const float* cos_;
    const float* sin_;
    int64_t half_;
    const int64_t* slots_;
    Cache cache_;
};

// planes: address, and bytes of each of the blocks that lie there one after the other.
void copy_blocks(const std::vector<std::pair<uintptr_t, int64_t>>& planes, const std::vector<std::pair<int64_t, int64_t>>& pairs) {
    const auto n_pairs = static_cast<int64_t>(pairs.size());
    pool().run(static_cast<int64_t>(planes.size()) * n_pairs, [&](int64_t task) {
        const auto [start, bytes] = planes[static_cast<size_t>(task / n_pairs)];
        const auto [from, to] = pairs[static_cast<size_t>(task % n_pairs)];
        char* data = address<char>(start);
        std::memcpy(data + to * bytes, data + from * bytes, static_cast<size_t>(bytes));
    });
}

}  // namespace

void bind_cache(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    using Planes = const std::vector<A>&;
    using Strides = const std::vector<std::vector<I>>&;
    bind_op<RopeAndWriteKV, A, A, A, A, I, I, I, I, I, I, I, A, A, A, I, A, Planes, Strides, I, I, bool>(m, "RopeAndWriteKV");
    m.attr("MOST_HEAD_SIZE") = MOST_HEAD_SIZE;
    m.def("copy_blocks", &copy_blocks, nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace pagewell
