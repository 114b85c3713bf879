// The cut of top_p: the greatest value that, with all likelier ones, holds the wanted mass. An interval that must contain it
// is narrowed by guesses from a few values; each guess is checked with exact sums, so that wrong ones cost time only.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "sample_row.h"

namespace pagewell {
namespace {

// As few values are sorted.
constexpr int64_t FEW = 96;
// And any number of them after as many guesses, of which five are usual: where the values that are taken tell little of the
// others, guesses may gain next to nothing.
constexpr int MOST_GUESSES = 16;

float next_up(float x) {
    return std::nextafter(x, std::numeric_limits<float>::infinity());
}

float next_down(float x) {
    return std::nextafter(x, -std::numeric_limits<float>::infinity());
}

struct Interval {
    float low, high;
};

class Nucleus {
  public:
    Nucleus(const Row& row, const Kept& all, double top_p)
        : row_(row), all_(all), wanted_(std::max(1.0, top_p * static_cast<double>(all.mass))), within_{all.floor, 0.0f} {}

    Kept find() {
        raise_low();
        take(row_.size(), [&](int64_t i) { return row_.tempered_at(i); });
        narrow(row_.size(), all_.mass, false, [&](Interval part) { return weighed(row_.split(part.low, part.high)); });
        bool stuck = false;
        for (int guesses = 1; within_.low != within_.high && n_ > FEW && guesses < MOST_GUESSES; ++guesses) {
            const int64_t n = n_;
            const float *t = packed().data(), *w = weights().data();
            take(n, [&](int64_t i) { return t[i]; });
            side_ ^= 1;
            grow(packed(), n + PACK_SLACK);
            narrow(n, above_ + middle_, stuck, [&](Interval part) {
                return weighed(sample_kernels().split_packed(t, w, n, part.low, part.high, packed().data()));
            });
            stuck = n_ > n / 2;
        }
        return within_.low == within_.high ? Kept{within_.low, above_ + middle_} : sorted();
    }

  private:
    bool enough(uint64_t mass) const { return static_cast<double>(mass) >= wanted_; }
    std::vector<float>& packed() const { return row_.space().packed[side_]; }
    std::vector<float>& weights() const { return row_.space().packed_weights[side_]; }

    // All values below this one together, each rounded up to a unit, weigh less than what may be dropped.
    void raise_low() {
        const double spare = static_cast<double>(all_.mass) - wanted_;
        const double each = spare / static_cast<double>(row_.size()) - 0.5;
        if (each > 0.0) {
            const double least = std::log2(each) - UNIT_BITS - 1e-3;
            within_.low = std::clamp(static_cast<float>(least), all_.floor, 0.0f);
        }
    }

    template <typename F>
    void take(int64_t n, const F& value) {
        for (int64_t i = 0; i < SAMPLES; ++i) taken_[i] = value((2 * i + 1) * n / (2 * SAMPLES));
    }

    // Drop from the smallest of the values taken on, each of which stands for n / SAMPLES, until what may be dropped of
    // `mass` is dropped. With one, the interval is a single value, one of those taken: whatever it turns out to be, the next
    // interval is without it.
    Interval guess(int64_t n, uint64_t mass, bool one) const {
        float weights[SAMPLES], sums[SAMPLES], squares[SAMPLES];
        sample_kernels().weigh_packed(taken_, SAMPLES, weights);
        for (int64_t i = 0; i < SAMPLES; ++i) {
            if (taken_[i] < all_.floor) weights[i] = 0.0f;
        }
        sample_kernels().sums_up_to(taken_, weights, sums, squares);
        const double spare_units = (static_cast<double>(mass) - wanted_) / static_cast<double>(n) * SAMPLES;
        const auto spare = static_cast<float>(std::ldexp(spare_units, -UNIT_BITS));
        Interval likely = within_;
        float nearest = within_.high, largest = within_.low;
        for (int64_t i = 0; i < SAMPLES; ++i) {
            const float t = taken_[i], margin = 2.5f * std::sqrt(squares[i]);
            if (t < within_.low) continue;
            largest = std::max(largest, t);
            if (sums[i] + margin < spare) likely.low = std::max(likely.low, t);
            if (sums[i] - margin > spare) likely.high = std::min(likely.high, t);
            if (sums[i] >= spare) nearest = std::min(nearest, t);
        }
        if (one) return {std::min(nearest, largest), std::min(nearest, largest)};
        likely.low = std::min(likely.low, within_.high);
        return {likely.low, std::max(likely.high, likely.low)};
    }

    // Narrow the interval to the guess or, where that was wrong, to the side of it where the value is. mass: of all values
    // down to the smallest of the n that are split.
    template <typename F>
    void narrow(int64_t n, uint64_t mass, bool one, const F& split) {
        const Interval likely = guess(n, mass, one);
        uint64_t over = split(likely);
        if (enough(above_ + over)) {
            within_.low = next_up(likely.high);
            over = split(within_);
        } else if (!enough(above_ + over + middle_)) {
            within_ = {all_.floor, next_down(likely.low)};
            over = split(within_);
        } else {
            within_ = likely;
        }
        above_ += over;
    }

    // What was found between becomes the packed values; returns what lies above them.
    uint64_t weighed(const Split& found) {
        n_ = found.n_middle;
        grow(weights(), n_);
        middle_ = sample_kernels().weigh_packed(packed().data(), n_, weights().data());
        return found.above;
    }

    Kept sorted() {
        float* t = packed().data();
        std::sort(t, t + n_, std::greater<float>());
        const auto weigh_one = [&](float value) {
            float weight;
            return sample_kernels().weigh_packed(&value, 1, &weight);
        };
        uint64_t mass = above_;
        int64_t i = 0;
        while (i < n_ && !enough(mass)) mass += weigh_one(t[i++]);
        const float floor = t[i - 1];
        for (; i < n_ && t[i] == floor; ++i) mass += weigh_one(floor);
        return {floor, mass};
    }

    const Row& row_;
    const Kept all_;
    const double wanted_;
    // The value lies within; what is likelier weighs above_. Between lie the n_ packed values, which weigh middle_.
    Interval within_;
    uint64_t above_ = 0, middle_ = 0;
    int64_t n_ = 0;
    int side_ = 0;
    float taken_[SAMPLES];
};

}  // namespace

Kept nucleus(const Row& row, const Kept& all, double top_p) {
    return Nucleus(row, all, top_p).find();
}

}  // namespace pagewell
