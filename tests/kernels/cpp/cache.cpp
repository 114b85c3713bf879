#include "kernels/cpu/cache.h"

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
            Values out(size), same = x;
            cache_kernels().rotate(x.data(), cos.data(), sin.data(), out.data(), half, size);
            check.close("rotate", out.data(), wanted.data(), size, 1e-6);
            check.that(out.kept(), "nothing is written past the end");
            cache_kernels().rotate(same.data(), cos.data(), sin.data(), same.data(), half, size);
            check.equal("rotate in place", same.data(), out.data(), size);
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
            cache_kernels().write(x.data(), wide.data(), step, size, Float::f32);
            for (int64_t i = 0; i < size; ++i) check.equal("float32", wide.data() + i * step, x.data() + i, 1);
            check.that(wide.kept(), "nothing is written past the end");
            // Both halves-precision formats hold -1, 0.5 and 96 exactly: sign, exponent and the places in between.
            Values exact(size);
            for (int64_t i = 0; i < size; ++i) exact[i] = i % 3 == 0 ? -1.0f : i % 3 == 1 ? 0.5f : 96.0f;
            for (const auto& [type, bits] : {std::pair(Float::f16, std::vector<uint16_t>{0xbc00, 0x3800, 0x5600}),
                                             std::pair(Float::bf16, std::vector<uint16_t>{0xbf80, 0x3f00, 0x42c0})}) {
                std::vector<uint16_t> halves(size_t(size * step + 1), 0x1234);
                cache_kernels().write(exact.data(), halves.data(), step, size, type);
                bool right = halves.back() == 0x1234;
                for (int64_t i = 0; i < size * step; ++i) {
                    right = right && halves[size_t(i)] == (i % step == 0 ? bits[size_t(i / step % 3)] : 0x1234);
                }
                check.that(right, type == Float::f16 ? "float16" : "bfloat16");
            }
        }
    }
}

}  // namespace pagewell
