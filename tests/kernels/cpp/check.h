// What the tests of the kernels share: registering, made-up data, comparing. A test is run once per instruction-set level.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace pagewell {

class Check {
  public:
    // Says what the next mismatches are about, such as "size 17".
    void about(std::string what) { what_ = std::move(what); }

    // |actual - wanted| <= tolerance * max(1, |wanted|), or both NaN, for each of n values.
    void close(const char* name, const float* actual, const double* wanted, int64_t n, double tolerance);
    // Bit by bit, so that NaN equals NaN and 0 does not equal -0.
    void equal(const char* name, const float* actual, const float* wanted, int64_t n);
    void that(bool holds, const char* name);

    int64_t n_mismatches() const { return n_mismatches_; }
    int64_t n_compared() const { return n_compared_; }

  private:
    void mismatch(const char* name, int64_t at, double actual, double wanted);

    std::string what_;
    int64_t n_mismatches_ = 0, n_compared_ = 0;
};

// Values that a kernel reads or writes, with marks behind the last one that it must not touch.
class Values {
  public:
    explicit Values(int64_t n, float fill = 0.0f);
    // Uniform in [-scale, scale], the same for the same seed.
    static Values random(int64_t n, float scale, uint32_t seed);

    float* data() { return values_.data(); }
    const float* data() const { return values_.data(); }
    float operator[](int64_t i) const { return values_[size_t(i)]; }
    float& operator[](int64_t i) { return values_[size_t(i)]; }
    int64_t size() const { return n_; }
    // Whether the marks are as they were.
    bool kept() const;

  private:
    int64_t n_;
    std::vector<float> values_;
};

// Lengths around the widths of vectors, and those of real models.
inline constexpr int64_t SIZES[] = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 576, 1000, 4097};

struct Test {
    const char* name;
    void (*run)(Check&);
};

// All tests, in no particular order.
std::vector<Test>& tests();

struct Registered {
    Registered(const char* name, void (*run)(Check&)) { tests().push_back({name, run}); }
};

}  // namespace pagewell

// PW_TEST(name) { ... check.close(...) ... }: inside namespace pagewell.
#define PW_TEST(name)                                            \
    static void test_##name(Check& check);                       \
    static const Registered registered_##name(#name, test_##name); \
    static void test_##name(Check& check)
