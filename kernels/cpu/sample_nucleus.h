// The cut of top_p: the greatest value whose likelier ones and itself hold the wanted mass, found by narrowing an interval.
#pragma once

#include "sample_row.h"

namespace pagewell {

// Where the value must lie, and where it probably lies: between low and high, near pivot. All of them tempered values.
struct Guess {
    float low, pivot, high;
};

// From values taken at even distances, rising: dropping from the smallest on until `spare` units are dropped. Each of them
// stands for `scale` values. Wrong guesses cost time only.
Guess guess(std::vector<std::pair<float, float>>& sampled, double scale, double spare, float low, float high);

template <typename Each>
class Nucleus {
  public:
    // all: what was weighed of the row
    Nucleus(Row<Each>& row, const Kept& all, double top_p) : row_(row), all_(all), wanted_(top_p * double(all.mass)) {}

    Kept find() {
        const int64_t n = row_.logits().n;
        const double spare = double(all_.mass) - wanted_;
        // Values that weigh less than this would, all n of them, not be missed.
        const double dispensable = spare / double(n) / double(uint64_t{1} << UNIT_BITS);
        low_ = all_.floor;
        high_ = 0.0f;
        if (dispensable > 0.0) low_ = std::min(high_, std::max(low_, float(std::log(dispensable)) - 1e-3f));
        sampled_.clear();
        for (int64_t i = 0; i < SAMPLES; ++i) sampled_.push_back(row_.value(position(i, n), all_.floor));
        const Guess first = guess(sampled_, double(n) / SAMPLES, spare, low_, high_);
        Workspace& space = workspace_();
        Split split = narrow(first.low, first.high, [&](float low, float high) { return row_.split(low, high); });
        Packed values{space.t[0].data(), space.w[0].data(), split.n_middle};
        bool slow = false;
        for (int side = 1; low_ != high_ && values.n > FEW; side ^= 1) {
            sampled_.clear();
            for (int64_t i = 0; i < SAMPLES; ++i) {
                const int64_t at = position(i, values.n);
                sampled_.emplace_back(values.t[at], values.w[at]);
            }
            const double left = double(above_ + split.middle) - wanted_;
            const Guess next = guess(sampled_, double(values.n) / SAMPLES, left, low_, high_);
            Packed found{space.t[side].data(), space.w[side].data(), 0};
            split = narrow(slow ? next.pivot : next.low, slow ? next.pivot : next.high, [&](float low, float high) {
                return sample_kernels().split(values.t, values.w, values.n, low, high, found.t, found.w);
            });
            found.n = split.n_middle;
            slow = found.n > values.n / 2;
            values = found;
        }
        return low_ == high_ ? Kept{low_, above_ + split.middle} : last(values);
    }
};

}  // namespace pagewell
