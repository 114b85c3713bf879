#include "heads.h"

#include <algorithm>
#include <cstring>

#include "binding.h"
#include "op.h"
#include "pool.h"

namespace pagewell {
namespace {

// Rows that read a head's matrix together.
constexpr int64_t MOST_ROWS = 32;

// x [n, heads, kept + n_in] with rows x_stride apart; w [heads, n_in, n_out]; out [n, heads, kept + n_out].
class HeadsLinear : public Op {
  public:
    HeadsLinear(uintptr_t out, uintptr_t x, int64_t x_stride, int64_t heads, int64_t kept, uintptr_t w, int64_t type, int64_t n_in,
                int64_t n_out)
        : out_(address<float>(out)), x_(address<const float>(x)), x_stride_(x_stride), heads_(heads), kept_(kept),
          w_(address<const char>(w)), type_(HeadsType(type)), n_in_(n_in), n_out_(n_out) {}

    void run(const Sizes& sizes) const override {
        const int64_t n_parts = (sizes.n_rows + MOST_ROWS - 1) / MOST_ROWS, item = type_ == HeadsType::f32 ? 4 : 2;
        const int64_t out_stride = heads_ * (kept_ + n_out_);
        pool().run(heads_ * n_parts, [&](int64_t task) {
            const int64_t head = task / n_parts, first = task % n_parts * MOST_ROWS;
            const int64_t rows = std::min(MOST_ROWS, sizes.n_rows - first);
            const float* x = x_ + first * x_stride_ + head * (kept_ + n_in_);
            float* y = out_ + first * out_stride + head * (kept_ + n_out_);
            for (int64_t row = 0; kept_ > 0 && row < rows; ++row) {
                std::memcpy(y + row * out_stride, x + row * x_stride_, static_cast<size_t>(kept_) * sizeof(float));
            }
            heads_kernels().product(x + kept_, x_stride_, rows, w_ + head * n_in_ * n_out_ * item, type_, n_in_, n_out_, y + kept_,
                                    out_stride);
        });
    }

  private:
    float* out_;
    const float* x_;
    int64_t x_stride_, heads_, kept_;
    const char* w_;
    HeadsType type_;
    int64_t n_in_, n_out_;
};

}  // namespace

void bind_heads(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    bind_op<HeadsLinear, A, A, I, I, I, A, I, I, I>(m, "HeadsLinear");
}

}  // namespace pagewell
