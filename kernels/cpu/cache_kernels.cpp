#include "cache.h"
#include "simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int N = f32v::N;
constexpr float MOST_F16 = 65504.0f, MOST_F8 = 448.0f;

void rotate(const float* x, const float* cos, const float* sin, float* out, int64_t half, int64_t size) {
    int64_t i = 0;
    for (; i + N <= half; i += N) {
        const f32v a = load(x + i), b = load(x + half + i), c = load(cos + i), s = load(sin + i);
        store(out + i, sub(mul(a, c), mul(b, s)));
        store(out + half + i, add(mul(b, c), mul(a, s)));
    }
    for (; i < half; ++i) {
        const float a = x[i], b = x[half + i];
        out[i] = a * cos[i] - b * sin[i];
        out[half + i] = b * cos[i] + a * sin[i];
    }
    for (i = 2 * half; i + N <= size; i += N) store(out + i, load(x + i));
    for (; i < size; ++i) out[i] = x[i];
}

void write_f32(const float* x, float* to, int64_t step, int64_t size) {
    if (step == 1) {
        __builtin_memcpy(to, x, size_t(size) * sizeof(float));
    } else {
        for (int64_t i = 0; i < size; ++i) to[i * step] = x[i];
    }
}

template <typename Item, typename Convert>
PW_INLINE void write_narrow(const float* x, void* out, int64_t step, int64_t size, const Convert& convert) {
    auto* to = static_cast<Item*>(out);
    int64_t i = 0;
    if (step == 1) {
        for (; i + N <= size; i += N) convert(to + i, load(x + i));
    }
    for (; i < size; i += N) {
        const int n = size - i < N ? int(size - i) : N;
        Item values[N];
        convert(values, n == N ? load(x + i) : load_some(x + i, n));
        for (int j = 0; j < n; ++j) to[(i + j) * step] = values[j];
    }
}

// In this order NaN stays NaN.
PW_INLINE f32v within(float most, f32v x) {
    return min(set1(most), max(set1(-most), x));
}

void write(const float* x, void* to, int64_t step, int64_t size, CacheType type) {
    switch (type) {
        case CacheType::f32: return write_f32(x, static_cast<float*>(to), step, size);
        case CacheType::f16:
            return write_narrow<uint16_t>(x, to, step, size, [](uint16_t* p, f32v v) { store_f16(p, within(MOST_F16, v)); });
        case CacheType::bf16: return write_narrow<uint16_t>(x, to, step, size, [](uint16_t* p, f32v v) { store_bf16(p, v); });
        case CacheType::f8:
            return write_narrow<uint8_t>(x, to, step, size, [](uint8_t* p, f32v v) { store_f8(p, within(MOST_F8, v)); });
        case CacheType::s8: return;  // has scales: quantize
    }
}

float quantize(const float* x, int8_t* to, int64_t step, int64_t size) {
    const auto vectors = [&](const auto& fn) {
        int64_t i = 0;
        for (; i + N <= size; i += N) fn(i, N, load(x + i));
        if (i < size) fn(i, int(size - i), load_some(x + i, int(size - i)));
    };
    f32v most = zero(), broken = zero();
    vectors([&](int64_t, int, f32v v) {
        most = max(most, abs(v));
        broken = fma(v, zero(), broken);  // NaN from infinity and NaN
    });
    const float scale = reduce_max(most) / 127.0f + reduce_add(broken);
    if (!(scale > 0.0f)) {
        for (int64_t i = 0; i < size; ++i) to[i * step] = 0;
        return scale;
    }
    // Divided, not multiplied by the inverse, which is infinite for the least of scales; those are coarse, hence the limits.
    vectors([&](int64_t i, int n, f32v v) {
        const f32v q = max(set1(-127.0f), min(set1(127.0f), round(div(v, set1(scale)))));
        int8_t values[N];
        int8_t* next = step == 1 && n == N ? to + i : values;
        store_s8(next, q);
        if (next != values) return;
        for (int j = 0; j < n; ++j) to[(i + j) * step] = values[j];
    });
    return scale;
}

}  // namespace

const CacheKernels cache = {rotate, write, quantize};

}  // namespace pagewell::PW_ISA
