// Operators that turn logits into tokens and log probabilities.
#include "sample.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "binding.h"
#include "op.h"
#include "pool.h"
#include "sample_random.h"
#include "sample_row.h"

namespace pagewell {
namespace {

// fn(row, together) for all rows: one thread per row, or all threads on each where there are fewer rows than threads.
template <typename F>
void each_row(int64_t n_rows, const F& fn) {
    if (n_rows < pool().n_threads()) {
        for (int64_t row = 0; row < n_rows; ++row) fn(row, true);
    } else {
        pool().run(n_rows, [&](int64_t row) { fn(row, false); });
    }
}

// How one row is drawn from, as kernels/ops.py has it.
struct Draw {
    double temperature, floor, top_k, top_p;
};

int64_t draw(Row& row, const Draw& how, double number) {
    row.temper(how.temperature);
    float floor = std::max(LEAST, static_cast<float>(how.floor));
    if (how.top_k >= 1.0 && how.top_k < static_cast<double>(row.size())) {
        floor = std::max(floor, row.tempered(row.kth_largest(static_cast<int64_t>(how.top_k))));
    }
    Kept kept = row.weigh(floor);
    if (kept.mass == 0) return -1;
    if (how.top_p < 1.0) kept = nucleus(row, kept, how.top_p);
    const auto target = static_cast<uint64_t>(number * static_cast<double>(kept.mass));
    return row.locate(kept, std::min(target, kept.mass - 1));
}

class Sample : public Op {
  public:
    Sample(uintptr_t out, uintptr_t logits, uintptr_t draws, uintptr_t numbers, int64_t n, int64_t stride)
        : out_(address<int64_t>(out)), logits_(address<const float>(logits)), draws_(address<const Draw>(draws)),
          numbers_(address<const double>(numbers)), n_(n), stride_(stride) {}

    void run(const Sizes& sizes) const override {
        each_row(sizes.n_rows, [&](int64_t i, bool together) {
            Row row(logits_ + i * stride_, n_, together);
            if (!std::isfinite(row.best())) {
                out_[i] = -1;
            } else if (!draws_ || draws_[i].temperature == 0.0) {
                out_[i] = row.first_best();
            } else {
                out_[i] = draw(row, draws_[i], numbers_[i]);
            }
        });
    }

  private:
    int64_t* out_;
    const float* logits_;
    const Draw* draws_;
    const double* numbers_;
    int64_t n_, stride_;
};

// Edits one row; the number of rows means nothing to it.
class Penalize : public Op {
  public:
    Penalize(uintptr_t logits, uintptr_t seen, int64_t n_seen, double repetition, uintptr_t output, uintptr_t counts,
             int64_t n_output, double frequency, double presence)
        : logits_(address<float>(logits)), seen_(address<const int64_t>(seen)), n_seen_(n_seen),
          repetition_(static_cast<float>(repetition)), output_(address<const int64_t>(output)),
          counts_(address<const double>(counts)), n_output_(n_output), frequency_(frequency), presence_(presence) {}

    void run(const Sizes&) const override {
        for (int64_t i = 0; i < n_seen_; ++i) {
            float& logit = logits_[seen_[i]];
            logit = logit > 0.0f ? logit / repetition_ : logit * repetition_;
        }
        for (int64_t i = 0; i < n_output_; ++i) logits_[output_[i]] -= static_cast<float>(frequency_ * counts_[i] + presence_);
    }

  private:
    float* logits_;
    const int64_t* seen_;
    int64_t n_seen_;
    float repetition_;
    const int64_t* output_;
    const double* counts_;
    int64_t n_output_;
    double frequency_, presence_;
};

class Logprobs : public Op {
  public:
    Logprobs(uintptr_t values, uintptr_t ranks, uintptr_t top_values, uintptr_t top_ids, uintptr_t logits, uintptr_t ids,
             int64_t n, int64_t stride, int64_t n_top)
        : values_(address<float>(values)), ranks_(address<int64_t>(ranks)), top_values_(address<float>(top_values)),
          top_ids_(address<int64_t>(top_ids)), logits_(address<const float>(logits)), ids_(address<const int64_t>(ids)), n_(n),
          stride_(stride), n_top_(n_top) {}

    void run(const Sizes& sizes) const override {
        each_row(sizes.n_rows, [&](int64_t i, bool together) {
            const float* x = logits_ + i * stride_;
            float* top_values = top_values_ + i * n_top_;
            int64_t* top_ids = top_ids_ + i * n_top_;
            Row row(x, n_, together);
            if (!std::isfinite(row.best())) {
                ranks_[i] = 1;
                values_[i] = std::numeric_limits<float>::quiet_NaN();
                std::fill_n(top_values, n_top_, std::numeric_limits<float>::quiet_NaN());
                for (int64_t j = 0; j < n_top_; ++j) top_ids[j] = j;
                return;
            }
            row.temper(1.0);
            const uint64_t mass = row.weigh(LEAST).mass;
            const double scale = row.best() + std::log(std::ldexp(static_cast<double>(mass), -UNIT_BITS));
            values_[i] = static_cast<float>(x[ids_[i]] - scale);
            ranks_[i] = row.count_above(x[ids_[i]]) + 1;
            if (n_top_ > 0) row.largest(n_top_, top_ids);
            for (int64_t j = 0; j < n_top_; ++j) top_values[j] = static_cast<float>(x[top_ids[j]] - scale);
        });
    }

  private:
    float* values_;
    int64_t* ranks_;
    float* top_values_;
    int64_t* top_ids_;
    const float* logits_;
    const int64_t* ids_;
    int64_t n_, stride_, n_top_;
};

class Uniform : public Op {
  public:
    Uniform(uintptr_t out, uintptr_t keys) : out_(address<double>(out)), keys_(address<const int64_t>(keys)) {}

    void run(const Sizes& sizes) const override {
        for (int64_t i = 0; i < sizes.n_rows; ++i) out_[i] = uniform(keys_[3 * i], keys_[3 * i + 1], keys_[3 * i + 2]);
    }

  private:
    double* out_;
    const int64_t* keys_;
};

}  // namespace

void bind_sample(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    bind_op<Sample, A, A, A, A, I, I>(m, "Sample");
    bind_op<Penalize, A, A, I, double, A, A, I, double, double>(m, "Penalize");
    bind_op<Logprobs, A, A, A, A, A, A, I, I, I>(m, "Logprobs");
    bind_op<Uniform, A, A>(m, "Uniform");
}

}  // namespace pagewell
