#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <tuple>
#include <type_traits>

#include "check.h"

namespace pagewell {
namespace {

constexpr int64_t HEADS = 2, GROUP = 5, BLOCK = 16, CONTEXT = 600;

// One sequence in float32, read in place where head_size allows: keys [block][head][dim][token], values [block][head][token][dim].
struct Sequence {
    int64_t head_size, n_query, window;
    float soft_cap;
    Values q, k, v;
    std::vector<int32_t> table;
    AttentionShape shape;

    Sequence(int64_t size, int64_t rows, int64_t seen, float cap)
        : head_size(size), n_query(rows), window(seen), soft_cap(cap), q(Values::random(rows * GROUP * size, 1, 1)),
          k(Values::random(n_blocks() * HEADS * size * BLOCK, 1, 2)), v(Values::random(n_blocks() * HEADS * size * BLOCK, 1, 3)) {
        for (int64_t i = 0; i < n_blocks(); ++i) table.push_back(int32_t(n_blocks() - 1 - i));
        const int64_t head = size * BLOCK, block = HEADS * head;
        const Plane keys{reinterpret_cast<char*>(k.data()), block, 1, head, BLOCK};
        const Plane values{reinterpret_cast<char*>(v.data()), block, size, head, 1};
        shape = {{keys, values, {}, {}, CacheType::f32, BLOCK}, size, size, GROUP, window, 1 / std::sqrt(float(size)), cap, size % 16 == 0};
        for (int64_t i = CONTEXT; i < n_blocks() * BLOCK; ++i) {
            for (int64_t d = 0; d < size; ++d) {
                k[key(1, i, d)] = v[value(1, i, d)] = std::numeric_limits<float>::quiet_NaN();
            }
        }
    }

    static int64_t n_blocks() { return (CONTEXT + BLOCK - 1) / BLOCK; }
    int64_t block_of(int64_t position) const { return table[size_t(position / BLOCK)]; }
    int64_t key(int64_t h, int64_t i, int64_t d) const { return ((block_of(i) * HEADS + h) * head_size + d) * BLOCK + i % BLOCK; }
    int64_t value(int64_t h, int64_t i, int64_t d) const { return ((block_of(i) * HEADS + h) * BLOCK + i % BLOCK) * head_size + d; }

    // Rows first .. first + n of KV head 1.
    AttentionTile tile(float* out, int64_t first, int64_t n) const {
        const int64_t start = CONTEXT - n_query, low = start + first / GROUP, high = start + (first + n - 1) / GROUP;
        const int64_t from = first_seen(low);
        return {q.data(), out, GROUP * head_size, GROUP * head_size, table.data(), 1, start, first, n, from / SPLIT, high / SPLIT + 1};
    }

    int64_t first_seen(int64_t position) const {
        int64_t from = 0;
        while (window > 0 && (shape.chunked ? from / window != position / window : position - from >= window)) ++from;
        return from;
    }

    std::vector<double> plain(int64_t row) const {
        const int64_t position = CONTEXT - n_query + row / GROUP;
        std::vector<double> weights(size_t(position + 1)), out(size_t(head_size), 0.0);
        double most = -1e300, sum = 0;
        const int64_t from = first_seen(position);
        for (int64_t i = from; i <= position; ++i) {
            double score = 0;
            for (int64_t d = 0; d < head_size; ++d) score += double(q[row * head_size + d]) * k[key(1, i, d)];
            score *= shape.scale;
            if (soft_cap > 0) score = soft_cap * std::tanh(score / soft_cap);
            weights[size_t(i)] = score;
            most = std::max(most, score);
        }
        for (int64_t i = from; i <= position; ++i) sum += weights[size_t(i)] = std::exp(weights[size_t(i)] - most);
        for (int64_t i = from; i <= position; ++i) {
            for (int64_t d = 0; d < head_size; ++d) out[size_t(d)] += weights[size_t(i)] / sum * v[value(1, i, d)];
        }
        return out;
    }
};

// The same in a narrower format without scales, as the kernel that writes caches rounds. What is no number there stays as it is.
template <CacheType TYPE>
struct Narrow : Sequence {
    using Item = std::conditional_t<size_of(TYPE) == 1, uint8_t, uint16_t>;
    std::vector<Item> small_k, small_v;

    Narrow(int64_t size, int64_t rows, int64_t seen, float cap)
        : Sequence(size, rows, seen, cap), small_k(rounded(k)), small_v(rounded(v)) {
        shape.cache.k.data = reinterpret_cast<char*>(small_k.data());
        shape.cache.v.data = reinterpret_cast<char*>(small_v.data());
        shape.cache.type = TYPE;
    }

    static std::vector<Item> rounded(Values& wide) {
        std::vector<Item> small(static_cast<size_t>(wide.size()));
        cache_kernels().write(wide.data(), small.data(), 1, wide.size(), TYPE);
        constexpr int MANTISSA = TYPE == CacheType::f16 ? 10 : TYPE == CacheType::bf16 ? 7 : 3, WIDTH = 8 * int(size_of(TYPE));
        constexpr int EXPONENT = WIDTH - 1 - MANTISSA, BIAS = (1 << (EXPONENT - 1)) - 1;
        for (int64_t i = 0; i < wide.size(); ++i) {
            if (std::isnan(wide[i])) continue;
            const int bits = small[size_t(i)], exponent = bits >> MANTISSA & ((1 << EXPONENT) - 1), mantissa = bits & ((1 << MANTISSA) - 1);
            const double whole = exponent ? mantissa + (1 << MANTISSA) : mantissa;
            const double magnitude = std::ldexp(whole, std::max(exponent, 1) - BIAS - MANTISSA);
            wide[i] = float(bits >> (WIDTH - 1) ? -magnitude : magnitude);
        }
        return small;
    }
};

// The same, rounded to int8.
struct Quantized : Sequence {
    std::vector<int8_t> small_k, small_v;
    Values k_scales, v_scales;  // [block][head][token]

    Quantized(int64_t size, int64_t rows, int64_t seen, float cap)
        : Sequence(size, rows, seen, cap), small_k(size_t(k.size()), -128), small_v(size_t(v.size()), -128),
          k_scales(n_blocks() * HEADS * BLOCK, std::numeric_limits<float>::quiet_NaN()), v_scales(k_scales) {
        for (int64_t i = 0; i < CONTEXT; ++i) {
            const int64_t at = (block_of(i) * HEADS + 1) * BLOCK + i % BLOCK;
            round(k, small_k, k_scales[at], [&](int64_t d) { return key(1, i, d); });
            round(v, small_v, v_scales[at], [&](int64_t d) { return value(1, i, d); });
        }
        Cache& cache = shape.cache;
        cache.k.data = reinterpret_cast<char*>(small_k.data());
        cache.v.data = reinterpret_cast<char*>(small_v.data());
        cache.k_scales = {reinterpret_cast<char*>(k_scales.data()), HEADS * BLOCK, 1, BLOCK, 0};
        cache.v_scales = {reinterpret_cast<char*>(v_scales.data()), HEADS * BLOCK, 1, BLOCK, 0};
        cache.type = CacheType::s8;
    }

    template <typename Place>
    void round(Values& wide, std::vector<int8_t>& small, float& scale, const Place& place) const {
        float most = 0;
        for (int64_t d = 0; d < head_size; ++d) most = std::max(most, std::abs(wide[place(d)]));
        scale = most / 127;
        for (int64_t d = 0; d < head_size; ++d) {
            float& x = wide[place(d)];
            small[size_t(place(d))] = int8_t(std::nearbyint(x / scale));
            x = scale * float(small[size_t(place(d))]);
        }
    }
};

struct Free {
    void operator()(float* p) const { ::operator delete(p, std::align_val_t(64)); }
};

std::unique_ptr<float, Free> scratch(int64_t head_size) {
    const auto n_bytes = size_t(attention_kernels().scratch_size(head_size)) * sizeof(float);
    return std::unique_ptr<float, Free>(static_cast<float*>(::operator new(n_bytes, std::align_val_t(64))));
}

template <typename Of>
void compare(Check& check) {
    for (const int64_t head_size : {16, 24, 64, 80}) {
        // Chunks of 149 and 297 have borders, at 596 and 594, among the rows' positions and within a block.
        for (const auto& [window, soft_cap, chunked] : {std::tuple<int64_t, float, bool>(0, 0.0f, false), {70, 0.0f, false}, {0, 0.5f, false},
                                                        {300, 0.5f, false}, {149, 0.0f, true}, {297, 0.5f, true}}) {
            Of sequence(head_size, 8, window, soft_cap);
            sequence.shape.chunked = chunked;
            const auto memory = scratch(head_size);
            for (const auto& [first, n] : {std::pair<int64_t, int64_t>(0, 5), {5, 1}, {6, 30}, {36, 4}}) {
                check.about("head size " + std::to_string(head_size) + ", window " + std::to_string(window) + (chunked ? ", chunked" : "") + ", rows from " +
                            std::to_string(first));
                Values out(sequence.q.size(), 7.0f), joined(sequence.q.size(), 7.0f);
                const AttentionTile tile = sequence.tile(out.data(), first, n);
                attention_kernels().attend(sequence.shape, tile, memory.get());
                for (int64_t row = first; row < first + n; ++row) {
                    check.close("attend", out.data() + row * head_size, sequence.plain(row).data(), head_size, 2e-6);
                }
                check.that(out.kept() && (first == 0 || out[first * head_size - 1] == 7.0f), "only the tile's rows are written");
                // The same in two parts.
                const AttentionTile other = sequence.tile(joined.data(), first, n);
                const int64_t size = n * partial_size(head_size), splits = tile.last_split - tile.first_split;
                Values partials(splits * size);
                for (int64_t i = 0; i < splits; ++i) {
                    const int64_t split = tile.first_split + i;
                    attention_kernels().attend_part(sequence.shape, other, split, split + 1, partials.data() + i * size, memory.get());
                }
                attention_kernels().join(sequence.shape, other, partials.data(), memory.get());
                check.that(partials.kept(), "partials have the size they should have");
                check.equal("join", joined.data(), out.data(), out.size());
            }
        }
    }
}

}  // namespace

PW_TEST(attend) {
    compare<Sequence>(check);
}

PW_TEST(attend_float16) {
    compare<Narrow<CacheType::f16>>(check);
}

PW_TEST(attend_bfloat16) {
    compare<Narrow<CacheType::bf16>>(check);
}

PW_TEST(attend_e4m3) {
    compare<Narrow<CacheType::f8>>(check);
}

// With a window of one position, a row's result is the value that lies there.
PW_TEST(attend_every_number_of_e4m3) {
    constexpr int64_t SIZE = 64, ROWS = 8;
    Narrow<CacheType::f8> sequence(SIZE, ROWS, 1, 0.0f);
    for (int i = 0; i < ROWS * SIZE; ++i) {
        sequence.small_v[size_t(sequence.value(1, CONTEXT - ROWS + i / SIZE, i % SIZE))] = uint8_t(i);
    }
    const auto memory = scratch(SIZE);
    for (const int64_t at_once : {int64_t(1), int64_t(GROUP), ROWS * GROUP}) {
        Values out(sequence.q.size());
        for (int64_t first = 0; first < ROWS * GROUP; first += at_once) {
            attention_kernels().attend(sequence.shape, sequence.tile(out.data(), first, at_once), memory.get());
        }
        for (int64_t row = 0; row < ROWS * GROUP; ++row) {
            std::vector<double> wanted;
            for (int64_t d = 0; d < SIZE; ++d) {
                const int bits = int(row / GROUP * SIZE + d) & 255, exponent = bits >> 3 & 15, mantissa = bits & 7;
                const double size = exponent ? std::ldexp(8 + mantissa, exponent - 10) : std::ldexp(mantissa, -9);
                wanted.push_back((bits & 127) == 127 ? std::nan("") : bits & 128 ? -size : size);
            }
            check.about("row " + std::to_string(row) + " of " + std::to_string(at_once) + " at once");
            check.close("value", out.data() + row * SIZE, wanted.data(), SIZE, 0.0);
        }
    }
}

PW_TEST(attend_int8) {
    compare<Quantized>(check);
}

PW_TEST(attend_scores_of_minus_infinity) {
    for (const auto& [window, soft_cap] : {std::pair<int64_t, float>(0, 0.0f), {70, 0.0f}, {0, 0.5f}}) {
        check.about("window " + std::to_string(window) + ", soft cap " + std::to_string(soft_cap));
        Sequence sequence(64, 8, window, soft_cap);
        for (int64_t row = 0; row < 8 * GROUP; ++row) sequence.q[row * 64] = std::abs(sequence.q[row * 64]) + 0.1f;
        for (int64_t i = 3; i < CONTEXT; i += 7) sequence.k[sequence.key(1, i, 0)] = -std::numeric_limits<float>::infinity();
        const auto memory = scratch(64);
        Values out(sequence.q.size());
        attention_kernels().attend(sequence.shape, sequence.tile(out.data(), 0, 8 * GROUP), memory.get());
        for (int64_t row = 0; row < 8 * GROUP; ++row) {
            check.close("attend", out.data() + row * 64, sequence.plain(row).data(), 64, 2e-6);
        }
    }
}

}  // namespace pagewell
