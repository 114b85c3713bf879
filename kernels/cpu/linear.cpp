#include "linear.h"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>
#include <vector>

#include "binding.h"
#include "linear_pack.h"
#include "memory.h"
#include "op.h"
#include "pool.h"

namespace pagewell {
namespace {

// A task reads at least this much of the weights, if there is enough for all threads: each thread then reads one place for long. From memory that gives
// 88% of its rate, where tasks of 24 KiB gave 72%.
constexpr int64_t TASK_BYTES = 256 << 10;
// Tasks for each thread, if there is enough to do: a thread that lost its core for a while leaves its share to others.
constexpr int64_t TASKS_PER_THREAD = 6;
// Bytes of quantised activations that a pass over the weights works on: they should stay in the second cache beside a panel.
constexpr int64_t ACTIVATION_BYTES = 768 << 10;

// Values that a task quantises, in whole rows: that takes about as long as its hand-over.
constexpr int64_t QUANTIZED_PER_TASK = 8192;

void gather(const float* x, const int32_t* order, int64_t k, float* out) {
    for (int64_t i = 0; i < k; ++i) out[i] = x[order[i]];
}

// x in the form in which the panels' kernels take it, and in the order of the weights' columns unless that is null.
class Input {
  public:
    // zeros: of all weights together, as LinearKernels has them.
    Input(const float* x, int64_t x_stride, int64_t k, int64_t n_rows, const int32_t* order, bool exact, unsigned zeros)
        : x_(x), x_stride_(x_stride), k_(k), exact_(exact) {
        const int64_t per_task = std::max<int64_t>(1, QUANTIZED_PER_TASK / k);
        const auto each_row = [&](const auto& fn) {
            pool().run((n_rows + per_task - 1) / per_task, [&](int64_t task) { fn(task * per_task, std::min(n_rows, (task + 1) * per_task)); });
        };
        if (exact) {
            if (order == nullptr) return;
            float* gathered = reinterpret_cast<float*>(scratch(size_t(n_rows * k * 4)));
            each_row([&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) gather(x + row * x_stride, order, k, gathered + row * k);
            });
            x_ = gathered;
            x_stride_ = k;
            return;
        }
        const int64_t group = group_of(n_rows), rows = round_up(n_rows, group), blocks = k / BLOCK;
        const size_t q_bytes = size_t(round_up<int64_t>(rows * k, 64)), scale_bytes = size_t(round_up<int64_t>(rows * blocks * 4, 64));
        uint8_t* p = scratch(q_bytes + 4 * scale_bytes + size_t(N_ZEROS * rows * blocks * 8));
        quantized_ = {reinterpret_cast<int8_t*>(p),
                      reinterpret_cast<float*>(p + q_bytes),
                      reinterpret_cast<float*>(p + q_bytes + scale_bytes),
                      reinterpret_cast<float*>(p + q_bytes + 2 * scale_bytes),
                      reinterpret_cast<int32_t*>(p + q_bytes + 4 * scale_bytes),
                      blocks,
                      group,
                      rows,
                      zeros};
        each_row([&](int64_t begin, int64_t end) {
            std::vector<float> gathered(order ? size_t(k) : 0);
            for (int64_t row = begin; row < end; ++row) {
                const float* values = x + row * x_stride;
                if (order) gather(values, order, k, gathered.data());
                linear_kernels().quantize(order ? gathered.data() : values, quantized_, row);
            }
        });
    }

    void product(const Packed& weight, int64_t panel, int64_t first, int64_t n_rows, float* acc) const {
        const uint8_t* p = weight.panel(panel);
        if (exact_) {
            linear_kernels().panel_exact[weight.format()](p, x_ + first * x_stride_, x_stride_, k_, n_rows, acc);
        } else {
            linear_kernels().panel[weight.format()](p, quantized_, first, n_rows, acc);
        }
    }

  private:
    const float* x_;
    int64_t x_stride_, k_;
    bool exact_;
    Quantized quantized_{};
};

// fn(panel, first row, rows) over panels and rows, in parallel; panels of one pass over the rows come first.
template <typename F>
void each_panel(int64_t n_panels, int64_t panel_bytes, int64_t k, int64_t n_rows, const F& fn) {
    const int64_t pass = std::clamp<int64_t>(ACTIVATION_BYTES / k / 16 * 16, 16, MOST_ROWS);
    const int64_t n_passes = (n_rows + pass - 1) / pass;
    const int64_t work = panel_bytes * std::max<int64_t>(1, std::min(n_rows, pass) / 16);
    const int64_t wanted = std::max<int64_t>(1, n_panels * n_passes / (pool().n_threads() * TASKS_PER_THREAD));
    const int64_t per_task = std::clamp<int64_t>((TASK_BYTES + work - 1) / work, 1, wanted);
    const int64_t tasks = (n_panels + per_task - 1) / per_task;
    pool().run(tasks * n_passes, [&](int64_t task) {
        const int64_t first = task / tasks * pass, n = std::min(pass, n_rows - first);
        const int64_t begin = task % tasks * per_task;
        for (int64_t panel = begin; panel < std::min(n_panels, begin + per_task); ++panel) fn(panel, first, n);
    });
}

struct Target {
    Packed weight;
    const float* bias;
    float* out;
};

// out[i] = x times weight[i] transposed + bias[i], several weights on one x.
class Linears : public Op {
  public:
    Linears(uintptr_t x, int64_t x_stride, const std::vector<const Packed*>& weights, const std::vector<uintptr_t>& biases,
            const std::vector<uintptr_t>& outs, bool exact)
        : x_(address<const float>(x)), x_stride_(x_stride), exact_(exact) {
        for (size_t i = 0; i < weights.size(); ++i) {
            if (weights[i]->n_in() != weights[0]->n_in()) throw std::invalid_argument("The weights take rows of different sizes.");
            if (!weights[i]->same_order(*weights[0])) throw std::invalid_argument("The weights have their columns in different orders.");
            if (weights[i]->is_float()) exact_ = true;
            targets_.push_back({*weights[i], address<const float>(biases[i]), address<float>(outs[i])});
            n_panels_ += weights[i]->n_panels();
            panel_bytes_ = std::max(panel_bytes_, weights[i]->panel_bytes());
        }
    }

    void run(const Sizes& sizes) const override {
        if (sizes.n_rows == 0) return;
        const int64_t k = targets_[0].weight.n_in();
        unsigned zeros = 0;
        for (const Target& target : targets_) zeros |= linear_kernels().zeros[target.weight.format()];
        const Input input(x_, x_stride_, k, sizes.n_rows, targets_[0].weight.order(), exact_, zeros);
        each_panel(n_panels_, panel_bytes_, k, sizes.n_rows, [&](int64_t panel, int64_t first, int64_t n) {
            const Target* target = targets_.data();
            while (panel >= target->weight.n_panels()) panel -= (target++)->weight.n_panels();
            alignas(64) float acc[MOST_ROWS * PANEL];
            input.product(target->weight, panel, first, n, acc);
            const int64_t n_out = target->weight.n_out(), column = panel * PANEL;
            linear_kernels().finish(acc, target->bias ? target->bias + column : nullptr, target->out + first * n_out + column, n_out, n,
                                    int(std::min<int64_t>(PANEL, n_out - column)));
        });
    }

  private:
    const float* x_;
    int64_t x_stride_;
    bool exact_;
    std::vector<Target> targets_;
    int64_t n_panels_ = 0, panel_bytes_ = 0;
};

// out = activation(x times gate + bias) * (x times up + bias)
class GatedLinear : public Op {
  public:
    GatedLinear(uintptr_t x, int64_t x_stride, const Packed& gate, const Packed& up, uintptr_t gate_bias, uintptr_t up_bias, bool gelu,
                uintptr_t out, bool exact)
        : x_(address<const float>(x)), x_stride_(x_stride), gate_(gate), up_(up), gate_bias_(address<const float>(gate_bias)),
          up_bias_(address<const float>(up_bias)), gelu_(gelu), out_(address<float>(out)),
          exact_(exact || gate.is_float() || up.is_float()) {
        if (gate.n_in() != up.n_in() || gate.n_out() != up.n_out()) throw std::invalid_argument("gate and up have different shapes.");
        if (!gate.same_order(up)) throw std::invalid_argument("gate and up have their columns in different orders.");
    }

    void run(const Sizes& sizes) const override {
        if (sizes.n_rows == 0) return;
        const int64_t k = gate_.n_in(), n_out = gate_.n_out();
        const unsigned zeros = linear_kernels().zeros[gate_.format()] | linear_kernels().zeros[up_.format()];
        const Input input(x_, x_stride_, k, sizes.n_rows, gate_.order(), exact_, zeros);
        each_panel(gate_.n_panels(), gate_.panel_bytes() + up_.panel_bytes(), k, sizes.n_rows, [&](int64_t panel, int64_t first, int64_t n) {
            alignas(64) float gate[MOST_ROWS * PANEL];
            alignas(64) float up[MOST_ROWS * PANEL];
            input.product(gate_, panel, first, n, gate);
            input.product(up_, panel, first, n, up);
            const int64_t column = panel * PANEL;
            linear_kernels().finish_gated(gate, up, gate_bias_ ? gate_bias_ + column : nullptr, up_bias_ ? up_bias_ + column : nullptr, gelu_,
                                          out_ + first * n_out + column, n_out, n, int(std::min<int64_t>(PANEL, n_out - column)));
        });
    }

  private:
    const float* x_;
    int64_t x_stride_;
    Packed gate_, up_;
    const float* gate_bias_;
    const float* up_bias_;
    bool gelu_;
    float* out_;
    bool exact_;
};

// out [n, k] = rows ids of the weight, times scale. An id out of range gives NaN, which no answer survives.
class Embedding : public Op {
  public:
    Embedding(uintptr_t out, uintptr_t ids, const Packed& weight, float scale)
        : out_(address<float>(out)), ids_(address<const int64_t>(ids)), weight_(weight), scale_(scale) {
        if (weight.order()) throw std::invalid_argument("Rows are looked up in weights whose columns are in their own order.");
    }

    void run(const Sizes& sizes) const override {
        const int64_t k = weight_.n_in();
        pool().run(sizes.n_rows, [&](int64_t i) {
            const int64_t id = ids_[i];
            float* out = out_ + i * k;
            if (id < 0 || id >= weight_.n_out()) {
                std::fill(out, out + k, std::numeric_limits<float>::quiet_NaN());
            } else {
                linear_kernels().row[weight_.format()](weight_.panel(id / PANEL), int(id % PANEL), k, scale_, out);
            }
        });
    }

  private:
    float* out_;
    const int64_t* ids_;
    Packed weight_;
    float scale_;
};

}  // namespace

void bind_linear(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    nb::class_<Packed>(m, "Packed")
        .def(
            "__init__",
            [](Packed* self, const std::string& type, I n_out, I n_in, A rows, I row_bytes, A scales, A zeros, I group, A order) {
                nb::gil_scoped_release release;
                const Stored stored{address<const uint8_t>(rows), row_bytes, address<const float>(scales),
                                    address<const void>(zeros),   group,     address<const int32_t>(order)};
                new (self) Packed(type, n_out, n_in, stored);
            },
            nb::arg("type"), nb::arg("n_out"), nb::arg("n_in"), nb::arg("rows"), nb::arg("row_bytes"), nb::arg("scales") = 0,
            nb::arg("zeros") = 0, nb::arg("group") = 0, nb::arg("order") = 0)
        .def("same_order", &Packed::same_order)
        .def_prop_ro("n_bytes", &Packed::n_bytes)
        .def_prop_ro("format", &Packed::format_name);
    bind_op<Linears, A, I, const std::vector<const Packed*>&, const std::vector<A>&, const std::vector<A>&, bool>(m, "Linears");
    bind_op<GatedLinear, A, I, const Packed&, const Packed&, A, A, bool, A, bool>(m, "GatedLinear");
    bind_op<Embedding, A, A, const Packed&, float>(m, "Embedding");
}

}  // namespace pagewell
