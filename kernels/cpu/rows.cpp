#include "rows.h"

#include <algorithm>

#include "binding.h"
#include "op.h"
#include "pool.h"

namespace pagewell {
namespace {

// Values below which handing work to another thread takes longer than doing it (0.5 to 1 us).
constexpr int64_t WORTH_SHARING = 1 << 14;

// fn(row) for all rows, in as many tasks as are worth their hand-over.
template <typename F>
void each_row(int64_t n_rows, int64_t row_size, const F& fn) {
    const int64_t per_task = std::max<int64_t>(1, WORTH_SHARING / row_size);
    const int64_t n_tasks = (n_rows + per_task - 1) / per_task;
    pool().run(n_tasks, [&](int64_t task) {
        for (int64_t row = task * per_task; row < std::min(n_rows, (task + 1) * per_task); ++row) fn(row);
    });
}

// x [n, size] with rows x_stride apart; each row is `heads` vectors of `size` values, which are normed one by one.
class RMSNorm : public Op {
  public:
    RMSNorm(uintptr_t out, uintptr_t x, uintptr_t weight, int64_t heads, int64_t size, int64_t x_stride, float eps)
        : out_(address<float>(out)), x_(address<const float>(x)), weight_(address<const float>(weight)), heads_(heads),
          size_(size), x_stride_(x_stride), eps_(eps) {}

    void run(const Sizes& sizes) const override {
        each_row(sizes.n_rows, heads_ * size_, [&](int64_t row) {
            for (int64_t head = 0; head < heads_; ++head) {
                const float* x = x_ + row * x_stride_ + head * size_;
                rows_kernels().rms_norm(x, weight_, out_ + (row * heads_ + head) * size_, size_, eps_);
            }
        });
    }

  private:
    float* out_;
    const float* x_;
    const float* weight_;
    int64_t heads_, size_, x_stride_;
    float eps_;
};

class RMSNormAdd : public Op {
  public:
    RMSNormAdd(uintptr_t out, uintptr_t sum, uintptr_t x, uintptr_t residual, uintptr_t weight, int64_t size, float eps)
        : out_(address<float>(out)), sum_(address<float>(sum)), x_(address<const float>(x)),
          residual_(address<const float>(residual)), weight_(address<const float>(weight)), size_(size), eps_(eps) {}

    void run(const Sizes& sizes) const override {
        each_row(sizes.n_rows, size_, [&](int64_t row) {
            const int64_t at = row * size_;
            rows_kernels().rms_norm_add(x_ + at, residual_ + at, weight_, out_ + at, sum_ + at, size_, eps_);
        });
    }

  private:
    float* out_;
    float* sum_;
    const float* x_;
    const float* residual_;
    const float* weight_;
    int64_t size_;
    float eps_;
};

// x [n, size] with rows x_stride apart, each of them `heads` vectors of `size` values; their weights are weight_stride apart.
class LayerNorm : public Op {
  public:
    LayerNorm(uintptr_t out, uintptr_t x, uintptr_t weight, uintptr_t bias, int64_t heads, int64_t size, int64_t x_stride,
              int64_t weight_stride, float eps)
        : out_(address<float>(out)), x_(address<const float>(x)), weight_(address<const float>(weight)),
          bias_(address<const float>(bias)), heads_(heads), size_(size), x_stride_(x_stride), weight_stride_(weight_stride),
          eps_(eps) {}

    void run(const Sizes& sizes) const override {
        each_row(sizes.n_rows, heads_ * size_, [&](int64_t row) {
            for (int64_t head = 0; head < heads_; ++head) {
                const float* x = x_ + row * x_stride_ + head * size_;
                float* out = out_ + (row * heads_ + head) * size_;
                rows_kernels().layer_norm(x, weight_ + head * weight_stride_, bias_, out, size_, eps_);
            }
        });
    }

  private:
    float* out_;
    const float* x_;
    const float* weight_;
    const float* bias_;
    int64_t heads_, size_, x_stride_, weight_stride_;
    float eps_;
};

class Add : public Op {
  public:
    Add(uintptr_t out, uintptr_t x, uintptr_t y, int64_t size, int64_t x_stride, int64_t y_stride)
        : out_(address<float>(out)), x_(address<const float>(x)), y_(address<const float>(y)), size_(size), x_stride_(x_stride),
          y_stride_(y_stride) {}

    void run(const Sizes& sizes) const override {
        each_row(sizes.n_rows, size_, [&](int64_t row) {
            rows_kernels().add(x_ + row * x_stride_, y_ + row * y_stride_, out_ + row * size_, size_);
        });
    }

  private:
    float* out_;
    const float* x_;
    const float* y_;
    int64_t size_, x_stride_, y_stride_;
};

class ScaleRows : public Op {
  public:
    ScaleRows(uintptr_t out, uintptr_t x, uintptr_t factors, uintptr_t positions, int64_t size, int64_t x_stride)
        : out_(address<float>(out)), x_(address<const float>(x)), factors_(address<const float>(factors)),
          positions_(address<const int64_t>(positions)), size_(size), x_stride_(x_stride) {}

    void run(const Sizes& sizes) const override {
        each_row(sizes.n_rows, size_, [&](int64_t row) {
            rows_kernels().scale(x_ + row * x_stride_, factors_[positions_[row]], out_ + row * size_, size_);
        });
    }

  private:
    float* out_;
    const float* x_;
    const float* factors_;
    const int64_t* positions_;
    int64_t size_, x_stride_;
};

class Activation : public Op {
  public:
    Activation(uintptr_t out, uintptr_t x, int64_t size, int64_t x_stride, bool gelu)
        : out_(address<float>(out)), x_(address<const float>(x)), size_(size), x_stride_(x_stride), gelu_(gelu) {}

    void run(const Sizes& sizes) const override {
        const auto activate = gelu_ ? rows_kernels().gelu_tanh : rows_kernels().relu_squared;
        each_row(sizes.n_rows, size_, [&](int64_t row) { activate(x_ + row * x_stride_, out_ + row * size_, size_); });
    }

  private:
    float* out_;
    const float* x_;
    int64_t size_, x_stride_;
    bool gelu_;
};

class GatedActivation : public Op {
  public:
    GatedActivation(uintptr_t out, uintptr_t gate, uintptr_t up, int64_t size, int64_t gate_stride, int64_t up_stride, bool gelu)
        : out_(address<float>(out)), gate_(address<const float>(gate)), up_(address<const float>(up)), size_(size),
          gate_stride_(gate_stride), up_stride_(up_stride), gelu_(gelu) {}

    void run(const Sizes& sizes) const override {
        const auto activate = gelu_ ? rows_kernels().gelu_tanh_mul : rows_kernels().silu_mul;
        each_row(sizes.n_rows, size_, [&](int64_t row) {
            activate(gate_ + row * gate_stride_, up_ + row * up_stride_, out_ + row * size_, size_);
        });
    }

  private:
    float* out_;
    const float* gate_;
    const float* up_;
    int64_t size_, gate_stride_, up_stride_;
    bool gelu_;
};

}  // namespace

void bind_rows(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    bind_op<RMSNorm, A, A, A, I, I, I, float>(m, "RMSNorm");
    bind_op<RMSNormAdd, A, A, A, A, A, I, float>(m, "RMSNormAdd");
    bind_op<LayerNorm, A, A, A, A, I, I, I, I, float>(m, "LayerNorm");
    bind_op<Add, A, A, A, I, I, I>(m, "Add");
    bind_op<ScaleRows, A, A, A, A, I, I>(m, "ScaleRows");
    bind_op<Activation, A, A, I, I, bool>(m, "Activation");
    bind_op<GatedActivation, A, A, A, I, I, I, bool>(m, "GatedActivation");
}

}  // namespace pagewell
