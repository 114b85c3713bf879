#include "sample_row.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

namespace pagewell {
namespace {

Workspace& workspace() {
    static thread_local Workspace instance;
    return instance;
}

}  // namespace

Row::Row(const float* x, int64_t n, bool together) : row_{x, nullptr, n, 0.0f, 1.0f}, space_(workspace()), together_(together) {
    grow(space_.maxima, n_groups());
    row_.maxima = space_.maxima.data();
    each_chunk([&](int64_t chunk) {
        sample_kernels().group_maxima(at(chunk).x, at(chunk).n, space_.maxima.data() + chunk * (CHUNK / GROUP));
    });
    row_.best = sample_kernels().largest(row_.maxima, n_groups());
}

LogitRow Row::at(int64_t chunk) const {
    const int64_t start = chunk * CHUNK;
    return {row_.x + start, row_.maxima + start / GROUP, std::min(CHUNK, row_.n - start), row_.best, row_.inverse};
}

int64_t Row::first_best() const {
    const int64_t start = sample_kernels().first_equal(row_.maxima, n_groups(), row_.best) * GROUP;
    return start + sample_kernels().first_equal(row_.x + start, std::min(GROUP, row_.n - start), row_.best);
}

// A value that at least k logits seem to reach, and not many more: guessed from a few of the groups' largest, or of the
// logits themselves if k is large.
float Row::bound_of(int64_t k) const {
    const bool few = k <= n_groups() / 4;
    const float* values = few ? row_.maxima : row_.x;
    const int64_t n = few ? n_groups() : row_.n;
    const double expected = static_cast<double>(k) * SAMPLES / static_cast<double>(n);
    const auto rank = static_cast<int64_t>(expected + 3.0 * std::sqrt(expected)) + 2;
    if (n < 2 * SAMPLES || rank >= SAMPLES) return -std::numeric_limits<float>::infinity();
    float taken[SAMPLES];
    for (int64_t i = 0; i < SAMPLES; ++i) taken[i] = values[(2 * i + 1) * n / (2 * SAMPLES)];
    std::nth_element(taken, taken + rank, taken + SAMPLES, std::greater<float>());
    return taken[rank];
}

float Row::kth_largest(int64_t k) const {
    auto& found = space_.packed[0];
    grow(found, row_.n + PACK_SLACK);
    int64_t n = sample_kernels().pack(row_, bound_of(k), found.data());
    if (n < k) n = sample_kernels().pack(row_, -std::numeric_limits<float>::infinity(), found.data());
    std::nth_element(found.begin(), found.begin() + (k - 1), found.begin() + n, std::greater<float>());
    return found[k - 1];
}

void Row::largest(int64_t k, int64_t* indices) const {
    const float bound = kth_largest(k);
    std::vector<int64_t> equal, above;
    for (int64_t g = 0; g < n_groups(); ++g) {
        if (!(row_.maxima[g] >= bound)) continue;
        for (int64_t i = g * GROUP; i < std::min(row_.n, (g + 1) * GROUP); ++i) {
            if (row_.x[i] > bound) above.push_back(i);
            if (row_.x[i] == bound && static_cast<int64_t>(equal.size()) < k) equal.push_back(i);
        }
    }
    std::stable_sort(above.begin(), above.end(), [&](int64_t a, int64_t b) { return row_.x[a] > row_.x[b]; });
    const auto end = std::copy(above.begin(), above.end(), indices);
    std::copy_n(equal.begin(), k - static_cast<int64_t>(above.size()), end);
}

Kept Row::weigh(float floor) {
    weighed_ = floor;
    grow(space_.weights, n_groups() * GROUP);
    grow(space_.sums, n_chunks());
    each_chunk([&](int64_t chunk) {
        space_.sums[chunk] = sample_kernels().weigh(at(chunk), floor, space_.weights.data() + chunk * CHUNK);
    });
    uint64_t mass = 0;
    for (int64_t chunk = 0; chunk < n_chunks(); ++chunk) mass += space_.sums[chunk];
    return {floor, mass};
}

Split Row::split(float low, float high) const {
    constexpr int64_t STRIDE = CHUNK + PACK_SLACK;
    grow(space_.packed[0], n_chunks() * STRIDE);
    grow(space_.splits, n_chunks());
    float* t = space_.packed[0].data();
    each_chunk([&](int64_t chunk) {
        const float* weights = space_.weights.data() + chunk * CHUNK;
        space_.splits[chunk] = sample_kernels().split(at(chunk), weights, low, high, t + chunk * STRIDE);
    });
    Split all{0, 0};
    for (int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
        const Split& part = space_.splits[chunk];
        std::copy_n(t + chunk * STRIDE, part.n_middle, t + all.n_middle);
        all = {all.above + part.above, all.n_middle + part.n_middle};
    }
    return all;
}

int64_t Row::locate(const Kept& kept, uint64_t target) const {
    for (int64_t chunk = 0; chunk < n_chunks(); ++chunk) {
        if (kept.floor == weighed_ && target >= space_.sums[chunk]) {
            target -= space_.sums[chunk];
            continue;
        }
        const int64_t index = sample_kernels().locate(at(chunk), space_.weights.data() + chunk * CHUNK, kept.floor, target);
        if (index >= 0) return chunk * CHUNK + index;
    }
    return -1;
}

}  // namespace pagewell
