// Packed: a weight as the kernels of linear.h read it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "linear.h"

namespace pagewell {

// A weight's memory: rows of GGUF blocks (layouts: block_* in ggml-common.h), of floats, or of numbers whose scales lie apart
// (SCALED of kernels/ops.py).
struct Stored {
    const uint8_t* data;
    int64_t row_bytes;               // from a row to the next
    const float* scales = nullptr;   // [n_out, n_in / group], of the types in SCALED
    const uint8_t* zeros = nullptr;  // the same of INT4; null: all are 8
    int64_t group = 0;
};

class Packed {
  public:
    // Unknown types, and rows that are no whole blocks or groups, throw std::invalid_argument.
    Packed(const std::string& type, int64_t n_out, int64_t n_in, const Stored& rows);

    Format format() const { return format_; }
    const char* format_name() const;
    int64_t n_out() const { return n_out_; }
    int64_t n_in() const { return n_in_; }
    int64_t n_panels() const { return (n_out_ + PANEL - 1) / PANEL; }
    int64_t panel_bytes() const { return panel_bytes_; }
    int64_t n_bytes() const { return n_panels() * panel_bytes_; }
    bool is_float() const { return format_ >= F32; }
    const uint8_t* panel(int64_t i) const { return data_.get() + i * panel_bytes_; }

  private:
    Format format_;
    int64_t n_out_, n_in_, panel_bytes_;
    std::shared_ptr<uint8_t> data_;
};

}  // namespace pagewell
