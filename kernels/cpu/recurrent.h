// Layers with a state: a causal convolution, the gated delta rule and the state space of Mamba-2, as kernels/ops.py has them.
//
// A sequence's rows are taken one after the other; what is computed for one of them sees its own sequence's state only, by operations whose
// order hangs on sizes of the model alone. Channels, heads and parts of a head's values are independent of each other, and are shared out.
#pragma once

#include <cstdint>

#include "isa.h"

namespace pagewell {

// Channels, or values of a head, that one call works on: a part of a state of 128 keys then stays in the nearest cache.
inline constexpr int64_t PART = 64;
inline constexpr int64_t MOST_TAPS = 16;

// Channels of one sequence.
struct ConvPart {
    const float* x;       // of the first row
    const float* weight;  // [n_channels, width]
    const float* bias;    // or null
    float* state;         // [n_channels, width - 1]
    float* out;           // of the first row
    int64_t x_stride, out_stride, n_rows, width;
    int n_channels;
    bool begins, activate;
};

// One head of one sequence; of its values only some, which states and outputs are of.
struct HeadPart {
    const float *q, *k, *v;  // of the first row; for Mamba-2: c, b and x
    const float *a, *b;      // steps; and for the delta rule the logits of what is written
    float* state;            // rows of n_values, state_stride apart
    float* out;
    int64_t q_stride, k_stride, v_stride, a_stride, b_stride, out_stride, state_stride;
    int64_t n_rows, key_dim;
    int n_values;
    float log_rate, bias, skip;
    bool begins;
};

struct RecurrentKernels {
    void (*conv)(const ConvPart& part);
    // scratch: (key_dim + 2 * key_dim / PART + 4) * PART floats, aligned
    void (*delta)(const HeadPart& part, float* scratch);
    void (*scan)(const HeadPart& part, float* scratch);
};

PAGEWELL_TABLES(RecurrentKernels, recurrent)

}  // namespace pagewell
