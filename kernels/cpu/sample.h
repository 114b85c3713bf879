// Sampling: what the passes over a row of logits share.
#pragma once

#include <cstdint>

#include "isa.h"

namespace pagewell {

// Logits per group. The largest of each is found first; the passes that follow skip the groups that cannot matter to them.
inline constexpr int64_t GROUP = 128;

// A weight is 2^tempered in whole units of 2^-43, so that sums of weights are exact and no order of adding changes them.
// Below 2^LEAST it is 0 units.
inline constexpr float LEAST = -46.0f;
inline constexpr int UNIT_BITS = 43;

// Values that guesses about a row are made from.
inline constexpr int64_t SAMPLES = 128;

// The most that a packing pass writes past what it packs.
inline constexpr int64_t PACK_SLACK = 16;

// Logits from the start of a group on, with the largest of each group, and how the row is tempered: (x - best) * inverse.
struct LogitRow {
    const float* x;
    const float* maxima;
    int64_t n;
    float best, inverse;
};

// Values of a row cut at two tempered values, low and high.
struct Split {
    uint64_t above;    // units of the values above high
    int64_t n_middle;  // number of those between low and high, both included
};

struct SampleKernels {
    // maxima[g] = the largest of group g, NaN where it has one
    void (*group_maxima)(const float* x, int64_t n, float* maxima);
    // The largest value, NaN if there is one
    float (*largest)(const float* x, int64_t n);
    // Index of the first x equal to value, or n
    int64_t (*first_equal)(const float* x, int64_t n, float value);
    // Number of x above value
    int64_t (*count_above)(const LogitRow& row, float value);
    // Pack the x that are at least bound; returns how many
    int64_t (*pack)(const LogitRow& row, float bound, float* out);
    // w[i] = 2^tempered for all i not below floor, else 0; returns their units. Groups that lie below floor are left unwritten.
    uint64_t (*weigh)(const LogitRow& row, float floor, float* w);
    // The same for tempered values as they are.
    uint64_t (*weigh_packed)(const float* t, int64_t n, float* w);
    // Pack the tempered values between low and high. low is at least the floor of the weighing.
    Split (*split)(const LogitRow& row, const float* w, float low, float high, float* t_out);
    // The same of packed values, to another place.
    Split (*split_packed)(const float* t, const float* w, int64_t n, float low, float high, float* t_out);
    // Of SAMPLES values with weights: for each, the sum of the weights of those up to it, and of their squares. About.
    void (*sums_up_to)(const float* t, const float* w, float* sums, float* squares);
    // Index of the first value whose running sum, over those not below floor, exceeds target; or -1, with the sum taken off
    // target.
    int64_t (*locate)(const LogitRow& row, const float* w, float floor, uint64_t& target);
};

PAGEWELL_TABLES(SampleKernels, sample)

}  // namespace pagewell
