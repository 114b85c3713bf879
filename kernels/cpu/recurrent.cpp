#include "recurrent.h"

#include <algorithm>
#include <stdexcept>

#include "binding.h"
#include "memory.h"
#include "op.h"
#include "pool.h"

namespace pagewell {
namespace {

// Whose rows and state are where.
struct Sequences {
    const int32_t* starts;    // [n + 1]
    const int32_t* contexts;  // [n]
    const int32_t* blocks;    // block_stride apart
    int64_t block_stride;

    int64_t first(int64_t i) const { return starts[i]; }
    int64_t n_rows(int64_t i) const { return starts[i + 1] - starts[i]; }
    bool begins(int64_t i) const { return contexts[i] == n_rows(i); }
    int64_t block(int64_t i) const { return blocks[i * block_stride]; }
};

// fn(sequence, part) for all sequences with rows and parts below n, in parallel.
template <typename F>
void each_part(const Sequences& sequences, int64_t n_seqs, int64_t n, const F& fn) {
    pool().run(n_seqs * n, [&](int64_t task) {
        if (sequences.n_rows(task / n) > 0) fn(task / n, task % n);
    });
}

class CausalConv : public Op {
  public:
    CausalConv(uintptr_t out, uintptr_t x, int64_t x_stride, uintptr_t weight, uintptr_t bias, int64_t n_channels, int64_t width, uintptr_t state,
               int64_t state_stride, uintptr_t starts, uintptr_t contexts, uintptr_t blocks, int64_t block_stride, bool activate)
        : out_(address<float>(out)), x_(address<const float>(x)), x_stride_(x_stride), weight_(address<const float>(weight)),
          bias_(address<const float>(bias)), n_channels_(n_channels), width_(width), state_(address<float>(state)), state_stride_(state_stride),
          sequences_{address<const int32_t>(starts), address<const int32_t>(contexts), address<const int32_t>(blocks), block_stride},
          activate_(activate) {
        if (width < 1 || width > MOST_TAPS) throw std::invalid_argument("The convolution is over too many tokens.");
    }

    void run(const Sizes& sizes) const override {
        // Several parts to a task where there are few rows: handing one over takes longer than computing it.
        const int64_t n_parts = (n_channels_ + PART - 1) / PART, together = std::clamp<int64_t>(64 / std::max<int64_t>(1, sizes.n_rows), 1, n_parts);
        each_part(sequences_, sizes.n_seqs, (n_parts + together - 1) / together, [&](int64_t i, int64_t task) {
            for (int64_t p = task * together; p < std::min(n_parts, (task + 1) * together); ++p) run_part(i, p * PART);
        });
    }

  private:
    void run_part(int64_t i, int64_t channel) const {
        const int64_t first = sequences_.first(i);
        recurrent_kernels().conv({x_ + first * x_stride_ + channel, weight_ + channel * width_, bias_ ? bias_ + channel : nullptr,
                                  state_ + sequences_.block(i) * state_stride_ + channel * (width_ - 1), out_ + first * n_channels_ + channel,
                                  x_stride_, n_channels_, sequences_.n_rows(i), width_, int(std::min(PART, n_channels_ - channel)),
                                  sequences_.begins(i), activate_});
    }

    float* out_;
    const float* x_;
    int64_t x_stride_;
    const float* weight_;
    const float* bias_;
    int64_t n_channels_, width_;
    float* state_;
    int64_t state_stride_;
    Sequences sequences_;
    bool activate_;
};

// An input whose rows are some way apart.
struct Input {
    const float* data;
    int64_t stride;
};

// The delta rule, or the state space of Mamba-2 where there is a skip.
class HeadStates : public Op {
  public:
    // inputs: q, k, v, a, b of the delta rule; c, b, x, steps of Mamba-2, addresses and strides of rows. of_heads: log rates, biases, skip or 0.
    HeadStates(uintptr_t out, const std::vector<uintptr_t>& inputs, const std::vector<int64_t>& strides, int64_t n_heads, int64_t n_key_heads,
               int64_t key_dim, int64_t dim, const std::vector<uintptr_t>& of_heads, uintptr_t state, int64_t state_stride, uintptr_t starts,
               uintptr_t contexts, uintptr_t blocks, int64_t block_stride, bool tiled)
        : out_(address<float>(out)), n_heads_(n_heads), n_key_heads_(n_key_heads), key_dim_(key_dim), dim_(dim),
          log_rates_(address<const float>(of_heads.at(0))), biases_(address<const float>(of_heads.at(1))),
          skips_(address<const float>(of_heads.at(2))), state_(address<float>(state)), state_stride_(state_stride),
          sequences_{address<const int32_t>(starts), address<const int32_t>(contexts), address<const int32_t>(blocks), block_stride}, tiled_(tiled) {
        for (size_t i = 0; i < inputs.size(); ++i) inputs_.push_back({address<const float>(inputs[i]), strides.at(i)});
        if (inputs_.size() != (skips_ ? 4u : 5u)) throw std::invalid_argument("So many inputs are not those of layers with a state.");
        if (n_heads % n_key_heads) throw std::invalid_argument("Heads cannot have equal shares of the key heads.");
    }

    void run(const Sizes& sizes) const override {
        const int64_t n_parts = (dim_ + PART - 1) / PART;
        const size_t n_bytes = size_t((key_dim_ + 2 * ((key_dim_ + PART - 1) / PART) + 2) * PART) * sizeof(float);
        each_part(sequences_, sizes.n_seqs, n_heads_ * n_parts, [&](int64_t i, int64_t task) {
            run_part(i, task / n_parts, task % n_parts * PART, reinterpret_cast<float*>(scratch(n_bytes)));
        });
    }

  private:
    void run_part(int64_t i, int64_t head, int64_t value, float* memory) const {
        const int64_t first = sequences_.first(i), key_head = tiled_ ? head % n_key_heads_ : head * n_key_heads_ / n_heads_;
        HeadPart part{};
        const auto at = [&](size_t input, int64_t column) { return inputs_[input].data + first * inputs_[input].stride + column; };
        part.q = at(0, key_head * key_dim_), part.q_stride = inputs_[0].stride;
        part.k = at(1, key_head * key_dim_), part.k_stride = inputs_[1].stride;
        part.v = at(2, head * dim_ + value), part.v_stride = inputs_[2].stride;
        part.a = at(3, head), part.a_stride = inputs_[3].stride;
        if (!skips_) part.b = at(4, head), part.b_stride = inputs_[4].stride;
        part.state = state_ + sequences_.block(i) * state_stride_ + head * key_dim_ * dim_ + value;
        part.state_stride = dim_;
        part.out = out_ + (first * n_heads_ + head) * dim_ + value;
        part.out_stride = n_heads_ * dim_;
        part.n_rows = sequences_.n_rows(i);
        part.key_dim = key_dim_;
        part.n_values = int(std::min(PART, dim_ - value));
        part.log_rate = log_rates_[head];
        part.bias = biases_[head];
        part.skip = skips_ ? skips_[head] : 0.0f;
        part.begins = sequences_.begins(i);
        (skips_ ? recurrent_kernels().scan : recurrent_kernels().delta)(part, memory);
    }

    float* out_;
    std::vector<Input> inputs_;
    int64_t n_heads_, n_key_heads_, key_dim_, dim_;
    const float* log_rates_;
    const float* biases_;
    const float* skips_;
    float* state_;
    int64_t state_stride_;
    Sequences sequences_;
    bool tiled_;
};

}  // namespace

void bind_recurrent(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    bind_op<CausalConv, A, A, I, A, A, I, I, A, I, A, A, A, I, bool>(m, "CausalConv");
    bind_op<HeadStates, A, const std::vector<A>&, const std::vector<I>&, I, I, I, I, const std::vector<A>&, A, I, A, A, A, I, bool>(m, "HeadStates");
}

}  // namespace pagewell
