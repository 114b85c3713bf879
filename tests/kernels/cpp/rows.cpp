#include "kernels/cpu/rows.h"

#include <cmath>
#include <limits>

#include "check.h"

namespace pagewell {
namespace {

constexpr float EPS = 1e-5f;
constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();
constexpr float INFINITE = std::numeric_limits<float>::infinity();

std::vector<double> plain_rms_norm(const Values& x, const Values& weight) {
    double squares = 0;
    for (int64_t i = 0; i < x.size(); ++i) squares += double(x[i]) * x[i];
    const double scale = 1 / std::sqrt(squares / double(x.size()) + EPS);
    std::vector<double> out;
    for (int64_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * weight[i]);
    return out;
}

double silu(double x) {
    return x / (1 + std::exp(-x));
}

double gelu_tanh(double x) {
    return 0.5 * x * (1 + std::tanh(std::sqrt(2 / 3.14159265358979323846) * (x + 0.044715 * x * x * x)));
}

void check_gated(Check& check, const char* name, void (*kernel)(const float*, const float*, float*, int64_t), double (*plain)(double)) {
    for (const int64_t size : SIZES) {
        check.about("size " + std::to_string(size));
        // Past the range of exp on both sides.
        const auto gate = Values::random(size, 120, 3), up = Values::random(size, 2, 4);
        std::vector<double> wanted;
        for (int64_t i = 0; i < size; ++i) wanted.push_back(plain(gate[i]) * up[i]);
        Values out(size, NOT_A_NUMBER);
        kernel(gate.data(), up.data(), out.data(), size);
        check.close(name, out.data(), wanted.data(), size, 2e-6);
        check.that(out.kept(), "nothing is written past the end");
    }
    check.about("odd values");
    const float odd[] = {0.0f, -0.0f, 1e-30f, -1e-30f, 88.8f, -88.8f, 1e30f, -1e30f, INFINITE, NOT_A_NUMBER};
    constexpr int64_t N = sizeof odd / sizeof *odd;
    Values ones(N, 1.0f), out(N);
    std::vector<double> wanted;
    for (const float x : odd) wanted.push_back(x == INFINITE ? double(INFINITE) : plain(x));
    kernel(odd, ones.data(), out.data(), N);
    for (int64_t i = 0; i < N; ++i) {
        if (std::isinf(wanted[size_t(i)])) {
            check.that(out[i] == INFINITE, "infinity stays");
        } else {
            check.close(name, out.data() + i, wanted.data() + i, 1, 2e-6);
        }
    }
}

}  // namespace

PW_TEST(rms_norm) {
    for (const int64_t size : SIZES) {
        check.about("size " + std::to_string(size));
        const auto x = Values::random(size, 3, 1), weight = Values::random(size, 2, 2);
        Values out(size, NOT_A_NUMBER);
        rows_kernels().rms_norm(x.data(), weight.data(), out.data(), size, EPS);
        check.close("rms_norm", out.data(), plain_rms_norm(x, weight).data(), size, 2e-6);
        check.that(out.kept(), "nothing is written past the end");

        Values in_place = x;
        rows_kernels().rms_norm(in_place.data(), weight.data(), in_place.data(), size, EPS);
        check.equal("rms_norm in place", in_place.data(), out.data(), size);
    }
}

PW_TEST(rms_norm_add) {
    for (const int64_t size : SIZES) {
        check.about("size " + std::to_string(size));
        const auto x = Values::random(size, 3, 1), residual = Values::random(size, 5, 2), weight = Values::random(size, 2, 3);
        Values out(size, NOT_A_NUMBER), sum(size, NOT_A_NUMBER), added(size), normed(size);
        for (int64_t i = 0; i < size; ++i) added[i] = x[i] + residual[i];
        rows_kernels().rms_norm_add(x.data(), residual.data(), weight.data(), out.data(), sum.data(), size, EPS);
        rows_kernels().rms_norm(added.data(), weight.data(), normed.data(), size, EPS);
        check.equal("sum", sum.data(), added.data(), size);
        check.equal("norm of the sum", out.data(), normed.data(), size);
        check.that(out.kept() && sum.kept(), "nothing is written past the end");
    }
}

PW_TEST(layer_norm) {
    for (const int64_t size : SIZES) {
        for (const bool biased : {false, true}) {
            check.about("size " + std::to_string(size));
            const auto x = Values::random(size, 3, 1), weight = Values::random(size, 2, 2), bias = Values::random(size, 2, 3);
            double sum = 0, squares = 0;
            for (int64_t i = 0; i < size; ++i) sum += x[i];
            for (int64_t i = 0; i < size; ++i) squares += (x[i] - sum / double(size)) * (x[i] - sum / double(size));
            const double scale = 1 / std::sqrt(squares / double(size) + EPS);
            std::vector<double> wanted;
            for (int64_t i = 0; i < size; ++i) {
                wanted.push_back((x[i] - sum / double(size)) * scale * weight[i] + (biased ? bias[i] : 0.0f));
            }
            Values out(size, NOT_A_NUMBER);
            rows_kernels().layer_norm(x.data(), weight.data(), biased ? bias.data() : nullptr, out.data(), size, EPS);
            check.close("layer_norm", out.data(), wanted.data(), size, 5e-6);
            check.that(out.kept(), "nothing is written past the end");
        }
    }
}

PW_TEST(sums_and_activations_of_rows) {
    for (const int64_t size : SIZES) {
        check.about("size " + std::to_string(size));
        const auto x = Values::random(size, 4, 1), y = Values::random(size, 3, 2);
        std::vector<double> added, scaled, gelus, squares;
        for (int64_t i = 0; i < size; ++i) {
            added.push_back(x[i] + y[i]);
            scaled.push_back(x[i] * 1.5);
            gelus.push_back(gelu_tanh(x[i]));
            squares.push_back(x[i] > 0 ? double(x[i]) * x[i] : 0);
        }
        Values out[4] = {Values(size, NOT_A_NUMBER), Values(size, NOT_A_NUMBER), Values(size, NOT_A_NUMBER), Values(size, NOT_A_NUMBER)};
        rows_kernels().add(x.data(), y.data(), out[0].data(), size);
        rows_kernels().scale(x.data(), 1.5f, out[1].data(), size);
        rows_kernels().gelu_tanh(x.data(), out[2].data(), size);
        rows_kernels().relu_squared(x.data(), out[3].data(), size);
        const std::vector<double>* wanted[] = {&added, &scaled, &gelus, &squares};
        for (int i = 0; i < 4; ++i) {
            check.close("row", out[i].data(), wanted[i]->data(), size, 2e-6);
            check.that(out[i].kept(), "nothing is written past the end");
        }
    }
}

PW_TEST(silu_mul) {
    check_gated(check, "silu_mul", rows_kernels().silu_mul, silu);
}

PW_TEST(gelu_tanh_mul) {
    check_gated(check, "gelu_tanh_mul", rows_kernels().gelu_tanh_mul, gelu_tanh);
}

}  // namespace pagewell
