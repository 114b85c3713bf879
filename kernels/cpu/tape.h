// Operators in a row, recorded once and run with one call per step.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "op.h"

namespace pagewell {

// Does not own its operators: the binding keeps them alive.
class Tape {
  public:
    void append(const Op* op) {
        ops_.push_back(op);
        seconds_.push_back(0.0);
    }

    void run(const Sizes& sizes) const {
        for (const Op* op : ops_) op->run(sizes);
    }

    // The same, adding each operator's time to seconds().
    void run_timed(const Sizes& sizes) {
        auto began = std::chrono::steady_clock::now();
        for (size_t i = 0; i < ops_.size(); ++i) {
            ops_[i]->run(sizes);
            const auto now = std::chrono::steady_clock::now();
            seconds_[i] += std::chrono::duration<double>(now - began).count();
            began = now;
        }
    }

    const std::vector<double>& seconds() const { return seconds_; }

  private:
    std::vector<const Op*> ops_;
    std::vector<double> seconds_;
};

}  // namespace pagewell
