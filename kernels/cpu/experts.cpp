#include "experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

#include "binding.h"
#include "linear.h"
#include "linear_pack.h"
#include "memory.h"
#include "op.h"
#include "pool.h"
#include "rows.h"

namespace pagewell {

Pairs::Pairs(const int32_t* ids, int64_t n_pairs, int64_t n_experts) {
    std::vector<int64_t> starts(size_t(n_experts) + 1, 0);
    const auto is_expert = [&](int64_t pair) { return ids[pair] >= 0 && ids[pair] < n_experts; };
    for (int64_t pair = 0; pair < n_pairs; ++pair) {
        if (is_expert(pair)) ++starts[size_t(ids[pair]) + 1];
    }
    for (int64_t e = 0; e < n_experts; ++e) {
        starts[size_t(e) + 1] += starts[size_t(e)];
        if (starts[size_t(e) + 1] > starts[size_t(e)]) runs_.push_back({e, starts[size_t(e)], starts[size_t(e) + 1]});
    }
    sorted_.resize(size_t(starts.back()));
    for (int64_t pair = 0; pair < n_pairs; ++pair) {
        if (is_expert(pair)) sorted_[size_t(starts[size_t(ids[pair])]++)] = int32_t(pair);
    }
}

namespace {

// As of linear.cpp: what a task reads of the weights if there is enough, and tasks for each thread.
constexpr int64_t TASK_BYTES = 256 << 10;
constexpr int64_t TASKS_PER_THREAD = 6;
// Values that a task copies, quantises or sums: that takes about as long as its hand-over.
constexpr int64_t VALUES_PER_TASK = 8192;

// fn(i) for i below n, in tasks of about VALUES_PER_TASK values, `size` for each i.
template <typename F>
void each(int64_t n, int64_t size, const F& fn) {
    const int64_t per_task = std::max<int64_t>(1, VALUES_PER_TASK / size);
    pool().run((n + per_task - 1) / per_task, [&](int64_t task) {
        for (int64_t i = task * per_task; i < std::min(n, (task + 1) * per_task); ++i) fn(i);
    });
}

// Activations of all pairs in the form in which the panels' kernels take them, those of an expert one behind the other.
class PairInput {
  public:
    // row_of(pair) -> its k values. The memory is part of `scratch`, which needs bytes(...) of it.
    template <typename RowOf>
    PairInput(const Pairs& pairs, int64_t k, bool exact, unsigned zeros, uint8_t* memory, const RowOf& row_of) : k_(k), exact_(exact) {
        if (exact) {
            rows_ = reinterpret_cast<float*>(memory);
            each(pairs.size(), k, [&](int64_t i) { std::memcpy(rows_ + i * k, row_of(pairs.sorted()[i]), size_t(k) * 4); });
            return;
        }
        std::vector<int32_t> run_of(size_t(pairs.size()));
        for (const Pairs::Run& run : pairs.runs()) {
            const int64_t group = group_of(run.size()), rows = round_up(run.size(), group), blocks = k / BLOCK;
            Quantized quantized{};
            quantized.q = reinterpret_cast<int8_t*>(memory);
            quantized.d = reinterpret_cast<float*>(memory += round_up<int64_t>(rows * k, 64));
            quantized.s = reinterpret_cast<float*>(memory += scale_bytes(rows, k));
            quantized.halves = reinterpret_cast<float*>(memory += scale_bytes(rows, k));
            quantized.seeds = reinterpret_cast<int32_t*>(memory += 2 * scale_bytes(rows, k));
            quantized.blocks = blocks, quantized.group = group, quantized.rows = rows, quantized.zeros = zeros;
            memory += N_ZEROS * rows * blocks * 8;
            for (int64_t i = run.begin; i < run.end; ++i) run_of[size_t(i)] = int32_t(quantized_.size());
            quantized_.push_back(quantized);
        }
        each(pairs.size(), k, [&](int64_t i) {
            const size_t run = size_t(run_of[size_t(i)]);
            linear_kernels().quantize(row_of(pairs.sorted()[i]), quantized_[run], i - pairs.runs()[run].begin);
        });
    }

    static size_t bytes(const Pairs& pairs, int64_t k, bool exact) {
        if (exact) return size_t(pairs.size() * k * 4);
        size_t total = 0;
        for (const Pairs::Run& run : pairs.runs()) {
            const int64_t rows = round_up(run.size(), group_of(run.size()));
            total += size_t(round_up<int64_t>(rows * k, 64) + 4 * scale_bytes(rows, k) + N_ZEROS * rows * (k / BLOCK) * 8);
        }
        return total;
    }

    // acc [n_rows, 16]: rows first .. of a run times one panel.
    void product(const Packed& weight, int64_t panel, size_t run, const Pairs::Run& pairs, int64_t first, int64_t n_rows, float* acc) const {
        const uint8_t* p = weight.panel(panel);
        if (exact_) {
            linear_kernels().panel_exact[weight.format()](p, rows_ + (pairs.begin + first) * k_, k_, k_, n_rows, acc);
        } else {
            linear_kernels().panel[weight.format()](p, quantized_[run], first, n_rows, acc);
        }
    }

  private:
    static int64_t scale_bytes(int64_t rows, int64_t k) { return round_up<int64_t>(rows * (k / BLOCK) * 4, 64); }

    int64_t k_;
    bool exact_;
    float* rows_ = nullptr;
    std::vector<Quantized> quantized_;
};

// Columns of an expert's result that one panel holds.
struct Columns {
    int64_t panel, first;  // of the result
    int skipped, n;        // rows of the panel before them, and their number
};

// fn(run, its pairs, columns) over the panels of all experts in use, in parallel, neighbours in memory by one thread. size: rows of an expert.
template <typename F>
void each_panel(const Pairs& pairs, int64_t size, int64_t panel_bytes, const F& fn) {
    const int64_t most = size / PANEL + 2, n = int64_t(pairs.runs().size()) * most;
    const int64_t wanted = std::max<int64_t>(1, n / (pool().n_threads() * TASKS_PER_THREAD));
    const int64_t per_task = std::clamp<int64_t>((TASK_BYTES + panel_bytes - 1) / panel_bytes, 1, wanted);
    pool().run((n + per_task - 1) / per_task, [&](int64_t task) {
        for (int64_t i = task * per_task; i < std::min(n, (task + 1) * per_task); ++i) {
            const Pairs::Run& run = pairs.runs()[size_t(i / most)];
            const int64_t begin = run.expert * size, end = begin + size, panel = begin / PANEL + i % most;
            const int64_t from = std::max(begin, panel * PANEL), to = std::min(end, (panel + 1) * PANEL);
            if (from < to) fn(size_t(i / most), run, Columns{panel, from - begin, int(from - panel * PANEL), int(to - from)});
        }
    });
}

void check(const Packed& weight, int64_t n_experts) {
    if (n_experts < 1 || weight.n_out() % n_experts) throw std::invalid_argument("The rows of the weight are not those of so many experts.");
    if (weight.order()) throw std::invalid_argument("The columns of experts' weights lie in another order.");
}

// What exceeds the panel's columns may be read: panels that an expert begins within are read from there on.
constexpr int ACC = MOST_ROWS * PANEL + PANEL;

enum Activation : int { SILU, GELU_TANH, CLIPPED };

// out [n, n_used * f] = activation(x times gate + bias) * (x times up + bias) of each pair's expert; with factors, x is that of the row
// times the pair's. Its products are multiplied instead of it: they are fewer, and x is quantised alike whatever the factor.
class ExpertsGated : public Op {
  public:
    ExpertsGated(uintptr_t out, uintptr_t x, int64_t x_stride, uintptr_t ids, int64_t n_used, const Packed& gate, const Packed& up,
                 uintptr_t gate_bias, uintptr_t up_bias, int64_t n_experts, int activation, float alpha, float limit, bool exact, uintptr_t factors)
        : out_(address<float>(out)), x_(address<const float>(x)), x_stride_(x_stride), ids_(address<const int32_t>(ids)), n_used_(n_used),
          gate_(gate), up_(up), gate_bias_(address<const float>(gate_bias)), up_bias_(address<const float>(up_bias)), n_experts_(n_experts),
          activation_(activation), alpha_(alpha), limit_(limit), exact_(exact || gate.is_float() || up.is_float()),
          factors_(address<const float>(factors)) {
        check(gate, n_experts);
        check(up, n_experts);
        if (gate.n_in() != up.n_in() || gate.n_out() != up.n_out()) throw std::invalid_argument("gate and up have different shapes.");
    }

    void run(const Sizes& sizes) const override {
        const int64_t k = gate_.n_in(), size = gate_.n_out() / n_experts_, n_pairs = sizes.n_rows * n_used_;
        const Pairs pairs(ids_, n_pairs, n_experts_);
        if (pairs.size() < n_pairs) std::fill(out_, out_ + n_pairs * size, std::numeric_limits<float>::quiet_NaN());
        const unsigned zeros = linear_kernels().zeros[gate_.format()] | linear_kernels().zeros[up_.format()];
        const PairInput input(pairs, k, exact_, zeros, scratch(PairInput::bytes(pairs, k, exact_)),
                              [&](int64_t pair) { return x_ + pair / n_used_ * x_stride_; });
        each_panel(pairs, size, gate_.panel_bytes() + up_.panel_bytes(), [&](size_t i, const Pairs::Run& run, const Columns& columns) {
            alignas(64) float gate[ACC];
            alignas(64) float up[ACC];
            const int64_t at = run.expert * size + columns.first;
            const float* gate_bias = gate_bias_ ? gate_bias_ + at : nullptr;
            const float* up_bias = up_bias_ ? up_bias_ + at : nullptr;
            for (int64_t first = 0; first < run.size(); first += MOST_ROWS) {
                const int64_t n = std::min<int64_t>(MOST_ROWS, run.size() - first);
                input.product(gate_, columns.panel, i, run, first, n, gate);
                input.product(up_, columns.panel, i, run, first, n, up);
                for (int64_t m = 0; m < n; ++m) {
                    const int64_t pair = pairs.sorted()[run.begin + first + m];
                    float *of_gate = gate + m * PANEL + columns.skipped, *of_up = up + m * PANEL + columns.skipped;
                    for (int c = 0; factors_ && c < columns.n; ++c) of_gate[c] *= factors_[pair], of_up[c] *= factors_[pair];
                    finish(of_gate, of_up, gate_bias, up_bias, out_ + pair * size + columns.first, columns.n);
                }
            }
        });
    }

  private:
    void finish(const float* gate, const float* up, const float* gate_bias, const float* up_bias, float* out, int n) const {
        if (activation_ != CLIPPED) {
            linear_kernels().finish_gated(gate, up, gate_bias, up_bias, activation_ == GELU_TANH, out, n, 1, n);
            return;
        }
        // gate * sigmoid(alpha * gate) is silu(alpha * gate) / alpha.
        float scaled[PANEL], moved[PANEL];
        for (int i = 0; i < n; ++i) {
            const float g = gate[i] + (gate_bias ? gate_bias[i] : 0.0f), u = up[i] + (up_bias ? up_bias[i] : 0.0f);
            scaled[i] = alpha_ * (g > limit_ ? limit_ : g);
            moved[i] = ((u > limit_ ? limit_ : u < -limit_ ? -limit_ : u) + 1.0f) / alpha_;
        }
        rows_kernels().silu_mul(scaled, moved, out, n);
    }

    float* out_;
    const float* x_;
    int64_t x_stride_;
    const int32_t* ids_;
    int64_t n_used_;
    Packed gate_, up_;
    const float* gate_bias_;
    const float* up_bias_;
    int64_t n_experts_;
    int activation_;
    float alpha_, limit_;
    bool exact_;
    const float* factors_;
};

// out [n, h] = sum over the pairs of a row, in the order of its ids, of gain * (inner times down + bias) of the pair's expert; null
// gains: 1
class ExpertsDown : public Op {
  public:
    ExpertsDown(uintptr_t out, uintptr_t inner, uintptr_t ids, uintptr_t gains, int64_t n_used, const Packed& down, uintptr_t bias,
                int64_t n_experts, bool exact)
        : out_(address<float>(out)), inner_(address<const float>(inner)), ids_(address<const int32_t>(ids)),
          gains_(address<const float>(gains)), n_used_(n_used), down_(down), bias_(address<const float>(bias)), n_experts_(n_experts),
          exact_(exact || down.is_float()) {
        check(down, n_experts);
    }

    void run(const Sizes& sizes) const override {
        const int64_t k = down_.n_in(), size = down_.n_out() / n_experts_, n_pairs = sizes.n_rows * n_used_;
        const Pairs pairs(ids_, n_pairs, n_experts_);
        const size_t n_products = size_t(round_up<int64_t>(n_pairs * size * 4, 64));
        uint8_t* memory = scratch(n_products + PairInput::bytes(pairs, k, exact_));
        float* products = reinterpret_cast<float*>(memory);
        if (pairs.size() < n_pairs) std::fill(products, products + n_pairs * size, std::numeric_limits<float>::quiet_NaN());
        const PairInput input(pairs, k, exact_, linear_kernels().zeros[down_.format()], memory + n_products,
                              [&](int64_t pair) { return inner_ + pair * k; });
        each_panel(pairs, size, down_.panel_bytes(), [&](size_t i, const Pairs::Run& run, const Columns& columns) {
            alignas(64) float acc[ACC];
            const float* bias = bias_ ? bias_ + run.expert * size + columns.first : nullptr;
            for (int64_t first = 0; first < run.size(); first += MOST_ROWS) {
                const int64_t n = std::min<int64_t>(MOST_ROWS, run.size() - first);
                input.product(down_, columns.panel, i, run, first, n, acc);
                for (int64_t m = 0; m < n; ++m) {
                    float* out = products + pairs.sorted()[run.begin + first + m] * size + columns.first;
                    linear_kernels().finish(acc + m * PANEL + columns.skipped, bias, out, size, 1, columns.n);
                }
            }
        });
        each(sizes.n_rows, size * n_used_, [&](int64_t row) {
            float* out = out_ + row * size;
            for (int64_t slot = 0; slot < n_used_; ++slot) {
                const float gain = gains_ ? gains_[row * n_used_ + slot] : 1.0f;
                const float* product = products + (row * n_used_ + slot) * size;
                if (slot == 0) {
                    for (int64_t i = 0; i < size; ++i) out[i] = gain * product[i];
                } else {
                    for (int64_t i = 0; i < size; ++i) out[i] += gain * product[i];
                }
            }
        });
    }

  private:
    float* out_;
    const float* inner_;
    const int32_t* ids_;
    const float* gains_;
    int64_t n_used_;
    Packed down_;
    const float* bias_;
    int64_t n_experts_;
    bool exact_;
};

enum Scores : int { SOFTMAX, SIGMOID, CHOSEN, CHOSEN_SIGMOID };

// ids and gains [n, n_used] of the experts of each row, from logits [n, n_experts]
class Route : public Op {
  public:
    Route(uintptr_t ids, uintptr_t gains, uintptr_t logits, int64_t stride, uintptr_t bias, int64_t n_experts, int64_t n_used, int scores,
          bool normalised, float eps, float scale, int64_t n_groups, int64_t n_used_groups, int64_t n_best, uintptr_t factors)
        : ids_(address<int32_t>(ids)), gains_(address<float>(gains)), logits_(address<const float>(logits)), stride_(stride),
          bias_(address<const float>(bias)), n_experts_(n_experts), n_used_(n_used), scores_(scores), normalised_(normalised), eps_(eps),
          scale_(scale), n_groups_(n_groups), n_used_groups_(n_used_groups), n_best_(n_best),
          factors_(address<const float>(factors)) {
        if (n_used < 1 || n_used > n_experts || n_groups < 1 || n_experts % n_groups || n_used_groups < 1 || n_used_groups > n_groups ||
            n_used > n_experts / n_groups * n_used_groups) {
            throw std::invalid_argument("So many experts of a row cannot be had from so many groups and experts.");
        }
    }

    void run(const Sizes& sizes) const override {
        each(sizes.n_rows, n_experts_ * 16, [&](int64_t row) { route(logits_ + row * stride_, ids_ + row * n_used_, gains_ + row * n_used_); });
    }

  private:
    void route(const float* logits, int32_t* ids, float* gains) const {
        const size_t n = size_t(n_experts_);
        std::vector<float> scores(logits, logits + n);
        if (scores_ == SOFTMAX) softmax(scores.data(), n);
        if (scores_ == SIGMOID) {
            for (float& score : scores) score = sigmoid(score);
        }
        std::vector<float> choice(scores);
        for (size_t i = 0; i < n; ++i) {
            if (bias_) choice[i] += bias_[i];
            if (std::isnan(choice[i])) choice[i] = -std::numeric_limits<float>::infinity();
        }
        std::vector<char> taken(n, 0);
        if (n_groups_ > 1) leave_groups(choice, taken);
        for (int64_t slot = 0; slot < n_used_; ++slot) {
            ids[slot] = int32_t(best(choice.data(), taken.data(), n));
            taken[size_t(ids[slot])] = 1;
            gains[slot] = scores[size_t(ids[slot])];
        }
        if (scores_ == CHOSEN) softmax(gains, size_t(n_used_));
        for (int64_t slot = 0; scores_ == CHOSEN_SIGMOID && slot < n_used_; ++slot) gains[slot] = sigmoid(gains[slot]);
        float sum = 0.0f;
        for (int64_t slot = 0; slot < n_used_; ++slot) sum += gains[slot];
        for (int64_t slot = 0; slot < n_used_; ++slot) gains[slot] = (normalised_ ? gains[slot] / (sum + eps_) : gains[slot]) * scale_;
        for (int64_t slot = 0; factors_ && slot < n_used_; ++slot) gains[slot] *= factors_[ids[slot]];
    }

    // Marks the experts of all but the best groups as taken.
    void leave_groups(const std::vector<float>& choice, std::vector<char>& taken) const {
        const size_t size = choice.size() / size_t(n_groups_);
        std::vector<float> of_group(size_t(n_groups_), 0.0f);
        for (size_t g = 0; g < of_group.size(); ++g) {
            std::vector<char> summed(size, 0);
            for (int64_t i = 0; i < std::min<int64_t>(n_best_, int64_t(size)); ++i) {
                const size_t at = best(choice.data() + g * size, summed.data(), size);
                summed[at] = 1;
                of_group[g] += choice[g * size + at];
            }
        }
        std::vector<char> kept(of_group.size(), 0);
        for (int64_t i = 0; i < n_used_groups_; ++i) kept[best(of_group.data(), kept.data(), kept.size())] = 1;
        for (size_t i = 0; i < taken.size(); ++i) taken[i] = !kept[i / size];
    }

    // The first of the largest that are not taken; one at least is not.
    static size_t best(const float* values, const char* taken, size_t n) {
        size_t found = n;
        for (size_t i = 0; i < n; ++i) {
            if (!taken[i] && (found == n || values[i] > values[found])) found = i;
        }
        return found;
    }

    static float sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

    static void softmax(float* values, size_t n) {
        float most = -std::numeric_limits<float>::infinity(), sum = 0.0f;
        for (size_t i = 0; i < n; ++i) most = std::max(most, values[i]);
        for (size_t i = 0; i < n; ++i) sum += values[i] = std::exp(values[i] - most);
        for (size_t i = 0; i < n; ++i) values[i] /= sum;
    }

    int32_t* ids_;
    float* gains_;
    const float* logits_;
    int64_t stride_;
    const float* bias_;
    int64_t n_experts_, n_used_;
    int scores_;
    bool normalised_;
    float eps_, scale_;
    int64_t n_groups_, n_used_groups_, n_best_;
    const float* factors_;
};

// out [n, h] = x + y * sigmoid(gate), rows of gate gate_stride apart; without a gate x + y
class AddGated : public Op {
  public:
    AddGated(uintptr_t out, uintptr_t x, uintptr_t y, uintptr_t gate, int64_t gate_stride, int64_t size)
        : out_(address<float>(out)), x_(address<const float>(x)), y_(address<const float>(y)), gate_(address<const float>(gate)),
          gate_stride_(gate_stride), size_(size) {}

    void run(const Sizes& sizes) const override {
        each(sizes.n_rows, size_, [&](int64_t row) {
            const float factor = gate_ ? 1.0f / (1.0f + std::exp(-gate_[row * gate_stride_])) : 1.0f;
            for (int64_t i = row * size_; i < (row + 1) * size_; ++i) out_[i] = x_[i] + y_[i] * factor;
        });
    }

  private:
    float* out_;
    const float* x_;
    const float* y_;
    const float* gate_;
    int64_t gate_stride_, size_;
};

// out [n, size] = x * y, or x * sigmoid(y)
class Product : public Op {
  public:
    Product(uintptr_t out, uintptr_t x, int64_t x_stride, uintptr_t y, int64_t y_stride, int64_t size, bool sigmoid)
        : out_(address<float>(out)), x_(address<const float>(x)), x_stride_(x_stride), y_(address<const float>(y)), y_stride_(y_stride),
          size_(size), sigmoid_(sigmoid) {}

    void run(const Sizes& sizes) const override {
        each(sizes.n_rows, sigmoid_ ? 8 * size_ : size_, [&](int64_t row) {
            const float *x = x_ + row * x_stride_, *y = y_ + row * y_stride_;
            float* out = out_ + row * size_;
            for (int64_t i = 0; i < size_; ++i) out[i] = x[i] * (sigmoid_ ? 1.0f / (1.0f + std::exp(-y[i])) : y[i]);
        });
    }

  private:
    float* out_;
    const float* x_;
    int64_t x_stride_;
    const float* y_;
    int64_t y_stride_, size_;
    bool sigmoid_;
};

}  // namespace

void bind_experts(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    bind_op<ExpertsGated, A, A, I, A, I, const Packed&, const Packed&, A, A, I, int, float, float, bool, A>(m, "ExpertsGated");
    bind_op<ExpertsDown, A, A, A, A, I, const Packed&, A, I, bool>(m, "ExpertsDown");
    bind_op<Route, A, A, A, I, A, I, I, int, bool, float, float, I, I, I, A>(m, "Route");
    bind_op<Product, A, A, I, A, I, I, bool>(m, "Product");
    bind_op<AddGated, A, A, A, A, I, I>(m, "AddGated");
}

}  // namespace pagewell
