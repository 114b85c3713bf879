#include "kernels/cpu/cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"

namespace pagewell {

namespace {

constexpr float INFINITE = std::numeric_limits<float>::infinity(), UNDEFINED = std::numeric_limits<float>::quiet_NaN();
constexpr struct {
    float x;
    uint8_t bits;
} E4M3[] = {{-1, 0xb8},     {0.5f, 0x30},      {96, 0x6c},           {448, 0x7e},  {-1e30f, 0xfe},
            {INFINITE, 0x7e}, {UNDEFINED, 0x7f}, {0.001953125f, 0x01}, {-0.0f, 0x80}};

}  // namespace

PW_TEST(rotate) {
    for (const int64_t half : {1, 4, 8, 12, 16, 32, 40}) {
        for (const int64_t rest : {0, 3, 16}) {
            const int64_t size = 2 * half + rest;
            check.about("half " + std::to_string(half) + ", rest " + std::to_string(rest));
            const auto x = Values::random(size, 3, 1), cos = Values::random(half, 1, 2), sin = Values::random(half, 1, 3);
            std::vector<double> wanted(x.data(), x.data() + size);
            for (int64_t i = 0; i < half; ++i) {
                wanted[size_t(i)] = double(x[i]) * cos[i] - double(x[half + i]) * sin[i];
                wanted[size_t(half + i)] = double(x[half + i]) * cos[i] + double(x[i]) * sin[i];
            }
            Values out(size);
            cache_kernels().rotate(x.data(), cos.data(), sin.data(), out.data(), half, size);
            check.close("rotate", out.data(), wanted.data(), size, 1e-6);
            check.that(out.kept(), "nothing is written past the end");
        }
    }
}

PW_TEST(write) {
    constexpr int64_t STEP = 3;
    for (const int64_t size : {1, 7, 8, 20, 64}) {
        for (const int64_t step : {int64_t(1), STEP}) {
            check.about("size " + std::to_string(size) + ", step " + std::to_string(step));
            const auto x = Values::random(size, 100, 5);
            Values wide(size * step, 7.0f);
            cache_kernels().write(x.data(), wide.data(), step, size, CacheType::f32);
            for (int64_t i = 0; i < size; ++i) check.equal("float32", wide.data() + i * step, x.data() + i, 1);
            check.that(wide.kept(), "nothing is written past the end");
            // Both halves-precision formats hold -1, 0.5 and 96 exactly: sign, exponent and the places in between.
            Values exact(size);
            for (int64_t i = 0; i < size; ++i) exact[i] = i % 3 == 0 ? -1.0f : i % 3 == 1 ? 0.5f : 96.0f;
            for (const auto& [type, bits] : {std::pair(CacheType::f16, std::vector<uint16_t>{0xbc00, 0x3800, 0x5600}),
                                             std::pair(CacheType::bf16, std::vector<uint16_t>{0xbf80, 0x3f00, 0x42c0})}) {
                std::vector<uint16_t> halves(size_t(size * step + 1), 0x1234);
                cache_kernels().write(exact.data(), halves.data(), step, size, type);
                bool right = halves.back() == 0x1234;
                for (int64_t i = 0; i < size * step; ++i) {
                    right = right && halves[size_t(i)] == (i % step == 0 ? bits[size_t(i / step % 3)] : 0x1234);
                }
                check.that(right, type == CacheType::f16 ? "float16" : "bfloat16");
            }
            // What float16 does not hold, and what it just holds.
            constexpr float INF = std::numeric_limits<float>::infinity(), NOT_A_NUMBER = std::numeric_limits<float>::quiet_NaN();
            constexpr float LARGE[] = {65504.0f, 65520.0f, -1e30f, INF, -INF, NOT_A_NUMBER};
            constexpr uint16_t KEPT[] = {0x7bff, 0x7bff, 0xfbff, 0x7bff, 0xfbff, 0x7e00};
            for (int64_t i = 0; i < size; ++i) exact[i] = LARGE[i % 6];
            std::vector<uint16_t> halves(size_t(size * step + 1), 0x1234);
            cache_kernels().write(exact.data(), halves.data(), step, size, CacheType::f16);
            bool right = halves.back() == 0x1234;
            for (int64_t i = 0; i < size; ++i) right = right && halves[size_t(i * step)] == KEPT[i % 6];
            check.that(right, "float16 of large values");
            std::vector<uint8_t> bytes(size_t(size * step + 1), 0x99);
            for (int64_t i = 0; i < size; ++i) exact[i] = E4M3[i % 9].x;
            cache_kernels().write(exact.data(), bytes.data(), step, size, CacheType::f8);
            right = bytes.back() == 0x99;
            for (int64_t i = 0; i < size * step; ++i) {
                right = right && bytes[size_t(i)] == (i % step == 0 ? E4M3[i / step % 9].bits : 0x99);
            }
            check.that(right, "E4M3");
        }
    }
}

// Every float32 whose lower half is one of a few, against the nearest number by search.
PW_TEST(write_e4m3) {
    std::vector<double> numbers;
    for (int i = 0; i < 127; ++i) numbers.push_back(i < 8 ? std::ldexp(i, -9) : std::ldexp(8 + i % 8, i / 8 - 10));
    for (uint32_t high = 0; high < 0x8000; ++high) {
        for (const uint32_t low : {0u, 1u, 0x7fffu, 0x8000u, 0xffffu}) {
            const float x = __builtin_bit_cast(float, high << 16 | low), both[] = {x, -x};
            uint8_t found[2], wanted = 0x7f;
            cache_kernels().write(both, found, 1, 2, CacheType::f8);
            if (!std::isnan(x)) {
                const auto above = std::lower_bound(numbers.begin(), numbers.end(), double(x));
                wanted = uint8_t(std::min<std::ptrdiff_t>(above - numbers.begin(), 126));
                if (wanted > 0 && x < numbers[wanted]) {
                    const double up = numbers[wanted] - x, down = x - numbers[size_t(wanted - 1)];
                    if (down < up || (down == up && wanted % 2 == 1)) --wanted;
                }
            }
            if (found[0] != wanted || found[1] != (wanted | 0x80)) {
                check.about("bits " + std::to_string(high << 16 | low));
                check.that(false, "to the nearest, ties to even");
            }
        }
    }
    check.that(true, "all");
}

PW_TEST(write_int8) {
    constexpr float TINY = std::numeric_limits<float>::denorm_min(), INF = std::numeric_limits<float>::infinity();
    for (const int64_t size : {1, 7, 8, 20, 64}) {
        for (const int64_t step : {1, 3}) {
            // The last two have scales of 0 and of TINY, which is coarse.
            for (const float most : {1.0f, 127.0f, 3e38f, 1e-36f, 0.0f, 20 * TINY, 160 * TINY}) {
                check.about("size " + std::to_string(size) + ", step " + std::to_string(step) + ", most " + std::to_string(most));
                auto x = Values::random(size, most, 5);
                x[size / 2] = -most;
                if (most == 127.0f && size > 7) x[0] = 2.5f, x[1] = 3.5f, x[2] = -0.5f;
                std::vector<int8_t> to(size_t(size * step + 1), 99);
                const float scale = cache_kernels().quantize(x.data(), to.data(), step, size);
                const float wanted = most / 127.0f;
                check.equal("scale", &scale, &wanted, 1);
                bool right = to.back() == 99;
                for (int64_t i = 0; i < size * step; ++i) {
                    const float q = scale == 0.0f ? 0.0f : std::nearbyint(x[i / step] / scale);
                    right = right && float(to[size_t(i)]) == (i % step == 0 ? std::max(-127.0f, std::min(127.0f, q)) : 99.0f);
                }
                check.that(right, "values");
            }
            for (const float bad : {INF, -INF, std::numeric_limits<float>::quiet_NaN()}) {
                auto x = Values::random(size, 1, 6);
                x[size - 1] = bad;
                std::vector<int8_t> to(size_t(size * step + 1), 99);
                bool right = std::isnan(cache_kernels().quantize(x.data(), to.data(), step, size));
                for (int64_t i = 0; i <= size * step; ++i) right = right && to[size_t(i)] == (i % step == 0 && i < size * step ? 0 : 99);
                check.that(right, "what is not finite has no finite scale");
            }
        }
    }
}

}  // namespace pagewell
