// One row of logits on its way to a token or to log probabilities, without a sort of the vocabulary.
#pragma once

#include <cstdint>
#include <vector>

#include "pool.h"
#include "sample.h"

namespace pagewell {

inline constexpr double LOG2_E = 1.4426950408889634;

template <typename T>
void grow(std::vector<T>& buffer, int64_t n) {
    if (static_cast<int64_t>(buffer.size()) < n) buffer.resize(n);
}

// Buffers of a thread, kept from row to row.
struct Workspace {
    std::vector<float> maxima, weights, packed[2], packed_weights[2];
    std::vector<uint64_t> sums;
    std::vector<Split> splits;
};

// The values that stay: those not below floor, which is a tempered value, and their units.
struct Kept {
    float floor;
    uint64_t mass;
};

class Row {
  public:
    // Finds the largest of the n logits. together: all threads work on this row; sums are exact, so that nothing depends on it.
    Row(const float* x, int64_t n, bool together);

    float best() const { return row_.best; }
    int64_t size() const { return row_.n; }
    Workspace& space() const { return space_; }

    // The first of the largest.
    int64_t first_best() const;
    // The k-th largest logit; k from 1 to n.
    float kth_largest(int64_t k) const;
    // The k largest, and of several equal ones the first: largest first, into indices.
    void largest(int64_t k, int64_t* indices) const;
    int64_t count_above(float value) const { return sample_kernels().count_above(row_, value); }

    void temper(double temperature) { row_.inverse = static_cast<float>(LOG2_E / temperature); }
    float tempered(float x) const { return (x - row_.best) * row_.inverse; }
    // Weigh all that is not below floor, which is at least LEAST.
    Kept weigh(float floor);
    float tempered_at(int64_t i) const { return tempered(row_.x[i]); }
    // The tempered values between low and high, into the workspace's first packed.
    Split split(float low, float high) const;
    // The first token whose running sum over what stays exceeds target, which is less than what stays.
    int64_t locate(const Kept& kept, uint64_t target) const;

  private:
    int64_t n_groups() const { return (row_.n + GROUP - 1) / GROUP; }
    int64_t n_chunks() const { return (row_.n + CHUNK - 1) / CHUNK; }
    LogitRow at(int64_t chunk) const;
    float bound_of(int64_t k) const;

    template <typename F>
    void each_chunk(const F& fn) const {
        if (together_) {
            pool().run(n_chunks(), fn);
        } else {
            for (int64_t chunk = 0; chunk < n_chunks(); ++chunk) fn(chunk);
        }
    }

    // What a thread takes at once of a row that several share.
    static constexpr int64_t CHUNK = 64 * GROUP;

    LogitRow row_;
    Workspace& space_;
    float weighed_ = 0.0f;
    bool together_;
};

// What top_p, below 1, leaves of what was weighed: the likeliest that hold this share of the mass, and all equals of the last.
Kept nucleus(const Row& row, const Kept& all, double top_p);

}  // namespace pagewell
