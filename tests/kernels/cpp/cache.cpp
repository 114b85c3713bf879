#include "kernels/cpu/cache.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "check.h"

namespace pagewell {

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
        }
    }
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
