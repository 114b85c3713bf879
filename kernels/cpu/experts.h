// Mixture of experts: products in which each row of activations meets the weights of its own experts only.
//
// The weights of all experts are one packed matrix, expert after expert. Rows are sorted by expert; a pair is a row with one of its experts. A pair's
// arithmetic is that of a row of linear.h, so that neither other rows nor other experts can change it.
#pragma once

#include <cstdint>
#include <vector>

namespace pagewell {

// The pairs of a step, by expert.
class Pairs {
  public:
    // ids [n_rows, n_used]: pair i is of row i / n_used. Ids that are no expert's are left out.
    Pairs(const int32_t* ids, int64_t n_pairs, int64_t n_experts);

    // One expert and its pairs, in rising order.
    struct Run {
        int64_t expert, begin, end;
        int64_t size() const { return end - begin; }
    };

    const std::vector<Run>& runs() const { return runs_; }
    const int32_t* sorted() const { return sorted_.data(); }
    int64_t size() const { return int64_t(sorted_.size()); }

  private:
    std::vector<int32_t> sorted_;
    std::vector<Run> runs_;
};

}  // namespace pagewell
