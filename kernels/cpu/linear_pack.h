// Packed: a weight as the kernels of linear.h read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "linear.h"

namespace pagewell {

// A weight's memory: rows of GGUF blocks (layouts: block_* in ggml-common.h), of floats, or of numbers whose scales lie apart
// (SCALED of kernels/ops.py).
struct Stored {
    const uint8_t* data;
    int64_t row_bytes;               // from a row to the next
    const float* scales = nullptr;   // [n_out, n_in / group], of the types in SCALED
    const void* zeros = nullptr;     // the same, uint8 of INT4, int16 of INT8; null: all are 8, or 0
    int64_t group = 0;
    const int32_t* order = nullptr;  // [n_in]: to which value of a row of x a column belongs; null: to that of its own place
};

class Packed {
  public:
    // Unknown types, rows that are no whole blocks or groups, and an order that is no permutation throw std::invalid_argument.
    Packed(const std::string& type, int64_t n_out, int64_t n_in, const Stored& rows);

    Format format() const { return format_; }
    const char* format_name() const;
    int64_t n_out() const { return n_out_; }
    int64_t n_in() const { return n_in_; }
    int64_t n_panels() const { return (n_out_ + PANEL - 1) / PANEL; }
    int64_t panel_bytes() const { return panel_bytes_; }
    int64_t n_bytes() const { return n_panels() * panel_bytes_ + (order_ ? n_in_ * 4 : 0); }
    const int32_t* order() const { return order_ ? order_->data() : nullptr; }
    bool same_order(const Packed& other) const;
    bool is_float() const { return format_ >= F32; }
    const uint8_t* panel(int64_t i) const { return data_.get() + i * panel_bytes_; }

  private:
    Format format_;
    int64_t n_out_, n_in_, panel_bytes_;
    std::shared_ptr<uint8_t> data_;
    std::shared_ptr<const std::vector<int32_t>> order_;
};

}  // namespace pagewell
