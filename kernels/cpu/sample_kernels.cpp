#include "sample_simd.h"

namespace pagewell::PW_ISA {
namespace {

constexpr int N = f32v::N;
// Vectors that are weighed side by side: as many as there are registers for.
constexpr int M = N == 8 ? 4 : 8;

PW_INLINE int64_t n_groups(int64_t n) {
    return (n + GROUP - 1) / GROUP;
}

// Group g of n values; the last one, if it is not whole, as a copy filled up with -inf.
struct Groups {
    const float* x;
    int64_t n;
    float last[GROUP];

    PW_INLINE Groups(const float* values, int64_t size) : x(values), n(size) {
        const int64_t whole = n / GROUP * GROUP;
        if (whole == n) return;
        for (int64_t i = 0; i < GROUP; ++i) last[i] = whole + i < n ? x[whole + i] : -__builtin_inff();
    }
    PW_INLINE const float* operator[](int64_t g) const { return (g + 1) * GROUP <= n ? x + g * GROUP : last; }
};

PW_INLINE float group_maximum(const float* x) {
    f32v best = max(load(x), load(x + N));
    maskv nan = unordered(load(x), load(x + N));
    for (int i = 2 * N; i < GROUP; i += 2 * N) {
        const f32v a = load(x + i), b = load(x + i + N);
        best = max(best, max(a, b));
        nan = either(nan, unordered(a, b));
    }
    return any(nan) ? __builtin_nanf("") : reduce_max(best);
}

void group_maxima(const float* x, int64_t n, float* maxima) {
    const Groups groups(x, n);
    for (int64_t g = 0; g < n_groups(n); ++g) maxima[g] = group_maximum(groups[g]);
}

float largest(const float* x, int64_t n) {
    const Groups groups(x, n);
    float best = -__builtin_inff();
    for (int64_t g = 0; g < n_groups(n); ++g) {
        const float maximum = group_maximum(groups[g]);
        if (maximum != maximum) return maximum;
        best = maximum > best ? maximum : best;
    }
    return best;
}

int64_t first_equal(const float* x, int64_t n, float value) {
    const f32v wanted = set1(value);
    int64_t i = 0;
    for (; i + N <= n; i += N) {
        if (const uint32_t found = bits(eq(load(x + i), wanted))) return i + __builtin_ctz(found);
    }
    while (i < n && x[i] != value) ++i;
    return i;
}

int64_t count_above(const LogitRow& row, float value) {
    const Groups groups(row.x, row.n);
    const f32v bound = set1(value);
    int64_t found = 0;
    for (int64_t g = 0; g < n_groups(row.n); ++g) {
        if (!(row.maxima[g] > value)) continue;
        for (int i = 0; i < GROUP; i += N) found += count(gt(load(groups[g] + i), bound));
    }
    return found;
}

int64_t pack_least(const LogitRow& row, float bound, float* out) {
    const Groups groups(row.x, row.n);
    int64_t n = 0;
    for (int64_t g = 0; g < n_groups(row.n); ++g) {
        if (!(row.maxima[g] >= bound)) continue;
        const int64_t size = row.n - g * GROUP;  // a bound of -inf takes no fillers
        for (int i = 0; i < GROUP && i < size; i += N) {
            const f32v x = load(groups[g] + i);
            const maskv kept = ge(x, set1(bound));
            pack(out + n, kept, x);
            n += count(kept);
        }
    }
    return n < row.n ? n : row.n;
}

PW_INLINE float tempered(const LogitRow& row, float x) {
    return (x - row.best) * row.inverse;
}

template <bool Cut>
PW_INLINE uint64_t weigh_groups(const LogitRow& row, float floor, float* w) {
    const Groups groups(row.x, row.n);
    const f32v best = set1(row.best), inverse = set1(row.inverse), least = set1(floor);
    Units total;
    for (int64_t g = 0; g < n_groups(row.n); ++g) {
        if (!(tempered(row, row.maxima[g]) >= floor)) continue;
        const float* x = groups[g];
        float* place = w + g * GROUP;
        for (int i = 0; i < GROUP; i += M * N) {
            f32v t[M], weights[M];
            for (int j = 0; j < M; ++j) t[j] = sub(load(x + i + j * N), best);
            for (int j = 0; j < M; ++j) t[j] = mul(t[j], inverse);
            weigh_some<M>(t, weights);
            for (int j = 0; j < M; ++j) store(place + i + j * N, Cut ? keep(ge(t[j], least), weights[j]) : weights[j]);
        }
        PW_SETTLE();
        for (int i = 0; i < GROUP; i += N) total.add(place + i);
    }
    return total.total();
}

uint64_t weigh(const LogitRow& row, float floor, float* w) {
    return floor > LEAST ? weigh_groups<true>(row, floor, w) : weigh_groups<false>(row, LEAST, w);
}

uint64_t weigh_packed(const float* t, int64_t n, float* w) {
    Units total;
    int64_t i = 0;
    for (; i + M * N <= n; i += M * N) {
        f32v values[M], weights[M];
        for (int j = 0; j < M; ++j) values[j] = load(t + i + j * N);
        weigh_some<M>(values, weights);
        for (int j = 0; j < M; ++j) store(w + i + j * N, weights[j]);
        PW_SETTLE();
        for (int j = 0; j < M; ++j) total.add(w + i + j * N);
    }
    uint64_t sum = total.total();
    for (; i < n; i += N) {
        const int rest = n - i < N ? int(n - i) : N;
        store_some(w + i, weight(load_some(t + i, rest)), rest);
        for (int j = 0; j < rest; ++j) sum += units(w[i + j]);
    }
    return sum;
}

// Collects what lies between low and high and, if any can, the units of what lies above.
template <bool Above>
struct Splitter {
    f32v low, high;
    float* out;
    Units above;
    int64_t n = 0;

    PW_INLINE void add(f32v t, const float* w) {
        maskv between = ge(t, low);
        if constexpr (Above) {
            const maskv over = gt(t, high);
            between = but_not(between, over);
            above.add(w, over);
        }
        pack(out + n, between, t);
        n += count(between);
    }
};

template <bool Above>
PW_INLINE Split split_groups(const LogitRow& row, const float* w, float low, float high, float* out) {
    const Groups groups(row.x, row.n);
    const f32v best = set1(row.best), inverse = set1(row.inverse);
    Splitter<Above> splitter{set1(low), set1(high), out, {}};
    for (int64_t g = 0; g < n_groups(row.n); ++g) {
        if (!(tempered(row, row.maxima[g]) >= low)) continue;
        const float* x = groups[g];
        for (int i = 0; i < GROUP; i += N) splitter.add(mul(sub(load(x + i), best), inverse), w + g * GROUP + i);
    }
    return {splitter.above.total(), splitter.n};
}

Split split(const LogitRow& row, const float* w, float low, float high, float* out) {
    return high < 0.0f ? split_groups<true>(row, w, low, high, out) : split_groups<false>(row, w, low, high, out);
}

Split split_packed(const float* t, const float* w, int64_t n, float low, float high, float* out) {
    Splitter<true> splitter{set1(low), set1(high), out, {}};
    int64_t i = 0;
    for (; i + N <= n; i += N) splitter.add(load(t + i), w + i);
    if (i < n) {
        float last[N], weights[N];
        for (int j = 0; j < N; ++j) {
            last[j] = i + j < n ? t[i + j] : -__builtin_inff();
            weights[j] = i + j < n ? w[i + j] : 0.0f;
        }
        splitter.add(load(last), weights);
    }
    return {splitter.above.total(), splitter.n};
}

void sums_up_to(const float* t, const float* w, float* sums, float* squares) {
    constexpr int SIDE = 4;
    for (int64_t i = 0; i < SAMPLES; i += SIDE * N) {
        f32v values[SIDE], sum[SIDE], square[SIDE];
        for (int j = 0; j < SIDE; ++j) {
            values[j] = load(t + i + j * N);
            sum[j] = square[j] = zero();
        }
        for (int64_t other = 0; other < SAMPLES; ++other) {
            const f32v least = set1(t[other]), weight = set1(w[other]);
            for (int j = 0; j < SIDE; ++j) {
                const f32v kept = keep(ge(values[j], least), weight);
                sum[j] = add(sum[j], kept);
                square[j] = fma(kept, kept, square[j]);
            }
        }
        for (int j = 0; j < SIDE; ++j) {
            store(sums + i + j * N, sum[j]);
            store(squares + i + j * N, square[j]);
        }
    }
}

int64_t locate(const LogitRow& row, const float* w, float floor, uint64_t& target) {
    const Groups groups(row.x, row.n);
    const f32v best = set1(row.best), inverse = set1(row.inverse), least = set1(floor);
    for (int64_t g = 0; g < n_groups(row.n); ++g) {
        if (!(tempered(row, row.maxima[g]) >= floor)) continue;
        float kept[GROUP];
        Units sum;
        for (int i = 0; i < GROUP; i += N) {
            const f32v t = mul(sub(load(groups[g] + i), best), inverse);
            store(kept + i, keep(ge(t, least), load(w + g * GROUP + i)));
        }
        PW_SETTLE();
        for (int i = 0; i < GROUP; i += N) sum.add(kept + i);
        const uint64_t total = sum.total();
        if (target >= total) {
            target -= total;
            continue;
        }
        int i = 0;
        for (; target >= units(kept[i]); ++i) target -= units(kept[i]);
        return g * GROUP + i;
    }
    return -1;
}

}  // namespace

const SampleKernels sample = {group_maxima, largest, first_equal,  count_above, pack_least, weigh,
                              weigh_packed, split,   split_packed, sums_up_to,  locate};

}  // namespace pagewell::PW_ISA
