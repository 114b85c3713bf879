#include "attention.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "binding.h"
#include "memory.h"
#include "op.h"
#include "planes.h"
#include "pool.h"

namespace pagewell {
namespace {

// Work is cut so that each thread has about this many tasks to choose from.
constexpr int64_t TASKS_PER_THREAD = 6;
// What reading a position's key and value costs, in rows of queries that use them.
constexpr int64_t READ_COST = 3;

int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

// A tile, and how many tasks share its splits; with more than one, each leaves partials and the last one to end joins them.
struct Work {
    AttentionTile tile;
    int64_t cost;
    int64_t n_parts = 1;
    int64_t partials = 0;  // offset in the workspace

    int64_t n_splits() const { return tile.last_split - tile.first_split; }
};

struct Task {
    int64_t work, part;
};

// Made anew for each call, in memory that stays.
struct Plan {
    std::vector<Work> works;
    std::vector<Task> tasks;
    std::unique_ptr<std::atomic<int64_t>[]> parts_left;
    size_t n_counters = 0;
    Buffer memory;

    // Returns the workspace for partials.
    float* cut(int64_t value_size, int n_threads) {
        int64_t total = 0;
        for (const Work& work : works) total += work.cost;
        const int64_t fair = n_threads == 1 ? total : total / (n_threads * TASKS_PER_THREAD);
        int64_t size = 0;
        tasks.clear();
        for (size_t i = 0; i < works.size(); ++i) {
            Work& work = works[i];
            work.n_parts = std::clamp<int64_t>(divide_up(work.cost, std::max<int64_t>(fair, 1)), 1, work.n_splits());
            if (work.n_parts > 1) {
                work.partials = size;
                size += work.n_splits() * work.tile.n_rows * partial_size(value_size);
            }
            for (int64_t part = 0; part < work.n_parts; ++part) tasks.push_back({static_cast<int64_t>(i), part});
        }
        if (works.size() > n_counters) {
            parts_left = std::make_unique<std::atomic<int64_t>[]>(works.size());
            n_counters = works.size();
        }
        for (size_t i = 0; i < works.size(); ++i) parts_left[i].store(works[i].n_parts, std::memory_order_relaxed);
        return reinterpret_cast<float*>(memory.get(static_cast<size_t>(size) * sizeof(float)));
    }
};

class PagedAttention : public Op {
  public:
    PagedAttention(uintptr_t out, uintptr_t q, int64_t q_stride, int64_t heads, int64_t kv_heads, int64_t head_size,
                   int64_t value_size, const std::vector<uintptr_t>& planes, const std::vector<std::vector<int64_t>>& strides,
                   int64_t block_size, int64_t type, uintptr_t query_starts, uintptr_t context_lens, uintptr_t block_tables,
                   int64_t table_stride, float scale, int64_t window, float soft_cap, uintptr_t sinks, bool chunked)
        : out_(address<float>(out)), q_(address<const float>(q)), q_stride_(q_stride), heads_(heads), kv_heads_(kv_heads),
          starts_(address<const int32_t>(query_starts)), contexts_(address<const int32_t>(context_lens)),
          tables_(address<const int32_t>(block_tables)), table_stride_(table_stride),
          shape_{cache(planes, strides, std::max(head_size, value_size), block_size, type),
                 head_size,
                 value_size,
                 heads / kv_heads,
                 window,
                 scale,
                 soft_cap,
                 false,
                 address<const float>(sinks),
                 chunked} {
        const Cache& cache = shape_.cache;
        shape_.direct = cache.k.token == 1 && cache.v.dim == 1 && block_size % 16 == 0 && head_size % 16 == 0 &&
                        value_size % 16 == 0;
    }

    void run(const Sizes& sizes) const override {
        thread_local Plan plan;
        plan.works.clear();
        for (int64_t i = 0; i < sizes.n_seqs; ++i) add_sequence(i, plan.works);
        float* partials = plan.cut(shape_.value_size, pool().n_threads());
        const AttentionKernels& kernels = attention_kernels();
        const size_t n_bytes = static_cast<size_t>(kernels.scratch_size(std::max(shape_.head_size, shape_.value_size))) * sizeof(float);
        pool().run(static_cast<int64_t>(plan.tasks.size()), [&, &plan = plan](int64_t i) {
            const Task& task = plan.tasks[static_cast<size_t>(i)];
            const Work& work = plan.works[static_cast<size_t>(task.work)];
            float* memory = reinterpret_cast<float*>(scratch(n_bytes));
            if (work.n_parts == 1) return kernels.attend(shape_, work.tile, memory);
            const int64_t first = task.part * work.n_splits() / work.n_parts;
            const int64_t last = (task.part + 1) * work.n_splits() / work.n_parts;
            float* own = partials + work.partials;
            float* part = own + first * work.tile.n_rows * partial_size(shape_.value_size);
            kernels.attend_part(shape_, work.tile, work.tile.first_split + first, work.tile.first_split + last, part, memory);
            if (plan.parts_left[static_cast<size_t>(task.work)].fetch_sub(1, std::memory_order_acq_rel) == 1) {
                kernels.join(shape_, work.tile, own, memory);
            }
        });
    }

  private:
    // Tiles of one sequence, KV head by KV head, so that their keys and values stay in a core's cache; the longest come first.
    void add_sequence(int64_t i, std::vector<Work>& works) const {
        const int64_t start = starts_[i], n_rows = (starts_[i + 1] - start) * shape_.group;
        if (n_rows == 0) return;
        const int64_t n_tiles = divide_up(n_rows, TILE_ROWS);
        const int64_t per_tile = std::min(TILE_ROWS, divide_up(divide_up(n_rows, n_tiles), 6) * 6);
        for (int64_t kv_head = 0; kv_head < kv_heads_; ++kv_head) {
            AttentionTile tile{};
            const int64_t first_head = kv_head * shape_.group;
            tile.q = q_ + start * q_stride_ + first_head * shape_.head_size;
            tile.out = out_ + (start * heads_ + first_head) * shape_.value_size;
            tile.q_stride = q_stride_;
            tile.out_stride = heads_ * shape_.value_size;
            tile.table = tables_ + i * table_stride_;
            tile.kv_head = kv_head;
            tile.first_position = contexts_[i] - n_rows / shape_.group;
            for (int64_t last = n_rows; last > 0; last = tile.first_row) {
                tile.first_row = (last - 1) / per_tile * per_tile;
                tile.n_rows = last - tile.first_row;
                const int64_t low = tile.first_position + tile.first_row / shape_.group;
                const int64_t high = tile.first_position + (last - 1) / shape_.group + 1;
                const int64_t from = shape_.first_seen(low);
                tile.first_split = from / SPLIT;
                tile.last_split = divide_up(high, SPLIT);
                works.push_back({tile, (high - from) * (tile.n_rows + READ_COST)});
            }
        }
    }

    float* out_;
    const float* q_;
    int64_t q_stride_, heads_, kv_heads_;
    const int32_t* starts_;
    const int32_t* contexts_;
    const int32_t* tables_;
    int64_t table_stride_;
    AttentionShape shape_;
};

}  // namespace

void bind_attention(nb::module_& m) {
    using A = uintptr_t;
    using I = int64_t;
    using Planes = const std::vector<A>&;
    using Strides = const std::vector<std::vector<I>>&;
    bind_op<PagedAttention, A, A, I, I, I, I, I, Planes, Strides, I, I, A, A, A, I, float, I, float, A, bool>(m, "PagedAttention");
}

}  // namespace pagewell
