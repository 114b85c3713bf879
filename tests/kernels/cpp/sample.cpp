#include "kernels/cpu/sample.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "check.h"
#include "kernels/cpu/sample_row.h"

namespace pagewell {
namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity();
constexpr float NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();

// By the formula of the kernels, one value at a time.
uint64_t plain_units(float tempered) {
    const float x = std::max(LEAST, tempered), whole = std::nearbyint(x), fraction = x - whole;
    float p = 0.00015353342f;
    for (const float coefficient : {0.0013398901f, 0.009618438f, 0.055503324f, 0.24022648f, 0.6931472f, 1.0f}) {
        p = p * fraction;
        p = p + coefficient;
    }
    return uint64_t(std::nearbyint(std::ldexp(double(p), int(whole) + UNIT_BITS)));
}

// What stays by sorting all of it, and the token that a target falls on.
struct PlainDraw {
    std::vector<float> t;
    float floor;
    uint64_t mass = 0;

    PlainDraw(const Row& row, float least, double top_p) : floor(least) {
        for (int64_t i = 0; i < row.size(); ++i) t.push_back(row.tempered_at(i));
        mass = above(floor);
        if (top_p < 1) cut(std::max(1.0, top_p * double(mass)));
    }
    uint64_t above(float least) const {
        uint64_t sum = 0;
        for (const float value : t) sum += value >= least ? plain_units(value) : 0;
        return sum;
    }
    void cut(double wanted) {
        std::vector<float> falling = t;
        std::sort(falling.begin(), falling.end(), std::greater<float>());
        uint64_t sum = 0;
        for (const float value : falling) {
            sum += plain_units(value);
            if (double(sum) < wanted) continue;
            floor = std::max(floor, value);
            break;
        }
        mass = above(floor);
    }
    int64_t token(uint64_t target) const {
        uint64_t sum = 0;
        for (size_t i = 0; i < t.size(); ++i) {
            sum += t[i] >= floor ? plain_units(t[i]) : 0;
            if (sum > target) return int64_t(i);
        }
        return -1;
    }
};

void check_draws(Check& check, const Values& x) {
    for (const bool together : {false, true}) {
        Row row(x.data(), x.size(), together);
        const float best = *std::max_element(x.data(), x.data() + x.size());
        check.that(row.best() == best, "the largest");
        check.that(x[row.first_best()] == best && std::count(x.data(), x.data() + row.first_best(), best) == 0, "the first largest");
        for (const double temperature : {0.3, 1.0, 1e30}) {
            row.temper(temperature);
            for (const float least : {LEAST, -3.0f}) {
                for (const double top_p : {1.0, 0.95, 0.6, 0.5, 0.0}) {
                    const PlainDraw plain(row, least, top_p);
                    const Kept all = row.weigh(least), kept = top_p < 1 ? nucleus(row, all, top_p) : all;
                    check.that(kept.mass == plain.mass, "what stays weighs the same");
                    for (const uint64_t target : {uint64_t{0}, plain.mass / 3, plain.mass / 2, plain.mass - 1}) {
                        check.that(row.locate(kept, target) == plain.token(target), "the token");
                    }
                }
            }
        }
    }
}

void check_order(Check& check, const Values& x) {
    const Row row(x.data(), x.size(), false);
    std::vector<int64_t> order(static_cast<size_t>(x.size()));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return x[a] > x[b]; });
    for (const int64_t k : {int64_t{1}, int64_t{2}, int64_t{40}, x.size() / 2, x.size()}) {
        if (k < 1 || k > x.size()) continue;
        const float least = x[order[size_t(k - 1)]];
        check.that(row.kth_largest(k) == least, "the k-th largest");
        std::vector<int64_t> found(static_cast<size_t>(k));
        row.largest(k, found.data());
        check.that(std::equal(found.begin(), found.end(), order.begin()), "the k largest in order");
        check.that(row.count_above(least) == std::count_if(x.data(), x.data() + x.size(), [&](float v) { return v > least; }),
                   "how many are larger");
    }
}

Values rounded(Values x) {
    for (int64_t i = 0; i < x.size(); ++i) x[i] = std::nearbyint(x[i]);
    return x;
}

}  // namespace

PW_TEST(sample) {
    for (const int64_t size : {int64_t{1}, int64_t{3}, int64_t{17}, GROUP - 1, GROUP, GROUP + 1, int64_t{1000}, int64_t{20011}}) {
        const std::string name = "size " + std::to_string(size);
        const Values spread = Values::random(size, 20, 1);
        const Values cases[] = {spread, Values::random(size, 0.1f, 2), rounded(Values::random(size, 3, 3)), Values(size, 1.5f)};
        for (const Values& x : cases) {
            check.about(name);
            check_draws(check, x);
            check_order(check, x);
        }
        Values some = spread;
        for (int64_t i = 1; i < size; ++i) some[i] = i % 3 ? -INFINITE : some[i];
        check.about(name + ", mostly -inf");
        check_draws(check, some);
        check_order(check, some);
    }
}

// Evenly spaced values of what stays are all equal: guesses from them know nothing of the heavy ones.
PW_TEST(sample_few_heavy_among_equals) {
    for (const int64_t n_equal : {90, 120, 302, 3000}) {
        for (const int64_t n_heavy : {1, 2, 3, 7}) {
            for (const int64_t step : {1, 2, 5}) {
                check.about(std::to_string(n_heavy) + " every " + std::to_string(step) + " among " + std::to_string(n_equal));
                Values x(4096, -60.0f);
                for (int64_t i = 0; i < n_equal; ++i) x[i] = -2.0f;
                for (int64_t i = 0; i < n_heavy; ++i) x[2 + i * step] = 5.0f - 0.01f * float(i);
                check_draws(check, x);
            }
        }
    }
}

// Every value differs, and the larger ones lie where the guesses look last.
PW_TEST(sample_heavy_tail_between_samples) {
    for (const int64_t size : {int64_t{1000}, int64_t{20011}}) {
        for (const float fall : {0.001f, 0.05f, 1.0f}) {
            check.about("size " + std::to_string(size) + ", fall " + std::to_string(fall));
            Values x(size, -20.0f);
            for (int64_t i = 0; i < size; ++i) x[i] = i % 157 < 3 ? 5.0f - fall * float(i % 157 * 200 + i / 157) : -20.0f - 1e-4f * float(i);
            check_draws(check, x);
        }
    }
}

PW_TEST(sample_largest_of_broken_rows) {
    for (const int64_t size : SIZES) {
        check.about("size " + std::to_string(size));
        for (const int64_t at : {int64_t{0}, size / 2, size - 1}) {
            Values x = Values::random(size, 3, 1);
            x[at] = NOT_A_NUMBER;
            check.that(std::isnan(Row(x.data(), size, false).best()), "NaN is the largest");
            x[at] = INFINITE;
            check.that(Row(x.data(), size, false).best() == INFINITE, "so is infinity");
        }
        const Values nothing(size, -INFINITE);
        check.that(Row(nothing.data(), size, false).best() == -INFINITE, "-inf alone");
    }
}

}  // namespace pagewell
