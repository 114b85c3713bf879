#include <algorithm>

#include "binding.h"
#include "op.h"
#include "pool.h"

namespace pagewell {
namespace {

// Values below which handing work to another thread takes longer than doing it.
constexpr int64_t WORTH_SHARING = 1 << 14;

// out = (x + y) * factor, all [n, size]. Plain loops: memory limits them.
class AddScaled : public Op {
  public:
    AddScaled(uintptr_t out, uintptr_t x, uintptr_t y, int64_t size, float factor)
        : out_(address<float>(out)), x_(address<const float>(x)), y_(address<const float>(y)), size_(size), factor_(factor) {}

    void run(const Sizes& sizes) const override {
        const int64_t n = sizes.n_rows * size_;
        pool().run((n + WORTH_SHARING - 1) / WORTH_SHARING, [&](int64_t task) {
            const int64_t end = std::min(n, (task + 1) * WORTH_SHARING);
            for (int64_t i = task * WORTH_SHARING; i < end; ++i) out_[i] = (x_[i] + y_[i]) * factor_;
        });
    }

  private:
    float* out_;
    const float* x_;
    const float* y_;
    int64_t size_;
    float factor_;
};

}  // namespace

void bind_sums(nb::module_& m) {
    using A = uintptr_t;
    bind_op<AddScaled, A, A, A, int64_t, float>(m, "AddScaled");
}

}  // namespace pagewell
