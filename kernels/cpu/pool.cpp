#include "pool.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <set>
#include <string>
#include <utility>

#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace pagewell {
namespace {

using Clock = std::chrono::steady_clock;

// A worker that sleeps needs 50 us to come back, so it spins through the host's part of a decode step (well under 1 ms).
constexpr auto SPIN = std::chrono::microseconds(1500);
// The caller gives its core away only when a worker has evidently lost its own.
constexpr int SPINS_BEFORE_YIELD = 20000;

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int n_threads) {
    for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this] { worker(); });
}

Pool::~Pool() {
    stopping_ = true;
    ++wake_;
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::dispatch(int64_t n_tasks, Call call, const void* context) {
    std::lock_guard lock(one_job_);
    const uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    const auto total = static_cast<uint32_t>(n_tasks);
    // Closed while the job is written: whoever sees a part of the new job cannot take a task with the old ticket any more.
    ticket_.store(epoch << 32 | UINT32_MAX);
    call_.store(call, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    n_tasks_.store(total, std::memory_order_release);
    n_done_.store(0, std::memory_order_release);
    ticket_.store(epoch << 32);
    if (n_parked_.load() > 0) {
        ++wake_;
        wake_.notify_all();
    }
    while (work_once()) {
    }
    for (int spins = 0; n_done_.load(std::memory_order_acquire) != total; ++spins) {
        if (spins < SPINS_BEFORE_YIELD) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
}

bool Pool::work_once() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
        const auto task = static_cast<uint32_t>(ticket);
        if (task >= n_tasks_.load(std::memory_order_acquire)) return false;
        const Call call = call_.load(std::memory_order_acquire);
        const void* context = context_.load(std::memory_order_acquire);
        if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            call(context, task);
            n_done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }
}

void Pool::worker() {
    auto idle_since = Clock::now();
    for (int spins = 0;; ++spins) {
        if (work_once()) {
            while (work_once()) {
            }
            idle_since = Clock::now();
            continue;
        }
        relax();
        if (spins % 64 || Clock::now() - idle_since < SPIN) continue;
        const uint32_t seen = wake_.load();
        if (stopping_) return;
        ++n_parked_;
        const auto ticket = ticket_.load();
        if (static_cast<uint32_t>(ticket) >= n_tasks_.load()) wake_.wait(seen);
        --n_parked_;
        idle_since = Clock::now();
    }
}

int physical_cores() {
    std::vector<int> cpus;
#if defined(__linux__)
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) == 0) {
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (CPU_ISSET(cpu, &allowed)) cpus.push_back(cpu);
        }
    }
    std::set<std::pair<std::string, std::string>> cores;
    for (const int cpu : cpus) {
        const auto topology = "/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/";
        std::string package, core;
        std::ifstream(topology + "physical_package_id") >> package;
        std::ifstream(topology + "core_id") >> core;
        if (!core.empty()) cores.emplace(package, core);
    }
    if (!cores.empty()) return static_cast<int>(cores.size());
    if (!cpus.empty()) return static_cast<int>(cpus.size());
#endif
    return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

namespace {
std::unique_ptr<Pool>& holder() {
    static std::unique_ptr<Pool> instance = std::make_unique<Pool>(physical_cores());
    return instance;
}
}  // namespace

Pool& pool() {
    return *holder();
}

void set_threads(int n_threads) {
    holder() = std::make_unique<Pool>(std::max(1, n_threads));
}

}  // namespace pagewell
