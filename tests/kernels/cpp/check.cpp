#include "check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

namespace pagewell {
namespace {

constexpr int MOST_PRINTED = 20;
constexpr int64_t N_MARKS = 64;
constexpr float MARK = -12345.678f;

}  // namespace

void Check::mismatch(const char* name, int64_t at, double actual, double wanted) {
    if (++n_mismatches_ > MOST_PRINTED) return;
    std::printf("    %s, %s: [%lld] is %.9g, not %.9g\n", what_.c_str(), name, static_cast<long long>(at), actual, wanted);
}

void Check::close(const char* name, const float* actual, const double* wanted, int64_t n, double tolerance) {
    for (int64_t i = 0; i < n; ++i) {
        const bool both_nan = std::isnan(actual[i]) && std::isnan(wanted[i]);
        const double error = std::abs(actual[i] - wanted[i]);
        if (!both_nan && !(error <= tolerance * std::max(1.0, std::abs(wanted[i])))) mismatch(name, i, actual[i], wanted[i]);
    }
    n_compared_ += n;
}

void Check::equal(const char* name, const float* actual, const float* wanted, int64_t n) {
    for (int64_t i = 0; i < n; ++i) {
        if (std::memcmp(actual + i, wanted + i, sizeof(float)) != 0) mismatch(name, i, actual[i], wanted[i]);
    }
    n_compared_ += n;
}

void Check::that(bool holds, const char* name) {
    if (!holds) mismatch(name, 0, 0, 1);
    ++n_compared_;
}

Values::Values(int64_t n, float fill) : n_(n), values_(size_t(n + N_MARKS), fill) {
    std::fill(values_.begin() + n, values_.end(), MARK);
}

Values Values::random(int64_t n, float scale, uint32_t seed) {
    Values made(n);
    std::mt19937 generator(seed);
    // Not std::uniform_real_distribution, whose values differ between standard libraries.
    for (int64_t i = 0; i < n; ++i) made[i] = (float(generator() >> 8) / float(1 << 23) - 1.0f) * scale;
    return made;
}

bool Values::kept() const {
    return std::all_of(values_.begin() + n_, values_.end(), [](float value) { return value == MARK; });
}

std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

}  // namespace pagewell
