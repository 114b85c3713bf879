#include "pool.h"

#include <algorithm>
#include <chrono>
#include <fstream>
#include <memory>
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
using namespace std::chrono_literals;

// A worker that sleeps needs 50 us to come back, so it spins through the host's part of a decode step (well under 1 ms).
constexpr auto SPIN = 1500us;
// A worker without work for this long offers its core to others as it spins on: operators follow each other sooner, and a
// core once offered is gone for a time slice, even if the other program is a most modest one.
constexpr auto YIELD_AFTER = 500us;
// Spins, of 50 ns or less, after which a waiting thread offers its core to others each time: by then a worker has lost its own.
constexpr uint32_t SPINS_BEFORE_YIELD = 8000;
// A caller that waits longer than this, and longer than it worked, waits for a worker that has lost its core to another program, until that one's
// time slice is over. Where such waits take a quarter of the time, threads gain nothing: the caller works alone for a while, and twice as long if it
// then happens again.
constexpr auto STALL = 400us;
constexpr std::chrono::nanoseconds WINDOW = 50ms, FIRST_PAUSE = 20ms, LONGEST_PAUSE = 640ms;

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
    _mm_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

}  // namespace

Pool::Pool(int n_threads) {
    try {
        for (int i = 1; i < n_threads; ++i) workers_.emplace_back([this] { worker(); });
    } catch (...) {
        stop();
        throw;
    }
}

Pool::~Pool() {
    stop();
}

void Pool::stop() {
    stopping_ = true;
    ++wake_;
    wake_.notify_all();
    for (auto& worker : workers_) worker.join();
}

void Pool::dispatch(int64_t n_tasks, Call call, const void* context) {
    std::lock_guard lock(one_job_);
    int64_t first = 0;
    auto began = Clock::now();
    for (; began < alone_until_ && first < n_tasks; began = Clock::now()) call(context, first++);
    if (first == n_tasks) return;
    share(first, n_tasks, call, context);
    const auto worked = Clock::now();
    for (uint32_t spins = 0; n_done_.load(std::memory_order_acquire) != static_cast<uint32_t>(n_tasks); ++spins) {
        if (spins < SPINS_BEFORE_YIELD) {
            relax();
        } else {
            std::this_thread::yield();
        }
    }
    note_wait(worked - began, Clock::now() - worked);
    if (failed_.load(std::memory_order_relaxed)) {
        failed_.store(false, std::memory_order_relaxed);
        std::rethrow_exception(std::exchange(exception_, nullptr));
    }
}

// Publish a job, of which the tasks before `first` are done, and work on it until no task is left to take.
void Pool::share(int64_t first, int64_t n_tasks, Call call, const void* context) {
    const uint64_t epoch = (ticket_.load(std::memory_order_relaxed) >> 32) + 1;
    // Closed while the job is written: whoever sees a part of the new job cannot take a task with the old ticket any more.
    ticket_.store(epoch << 32 | UINT32_MAX);
    call_.store(call, std::memory_order_release);
    context_.store(context, std::memory_order_release);
    n_tasks_.store(static_cast<uint32_t>(n_tasks), std::memory_order_release);
    n_done_.store(static_cast<uint32_t>(first), std::memory_order_release);
    ticket_.store(epoch << 32 | static_cast<uint32_t>(first));
    if (n_parked_.load() > 0) {
        ++wake_;
        wake_.notify_all();
    }
    while (work_once()) {
    }
}

void Pool::note_wait(std::chrono::nanoseconds worked, std::chrono::nanoseconds waited) {
    if (waited < STALL || waited < worked) return;
    const auto now = Clock::now();
    if (now - window_began_ > WINDOW) {
        window_began_ = now - waited;
        stalled_ = {};
    }
    stalled_ += waited;
    if (stalled_ < WINDOW / 4) return;
    const bool again = window_began_ - alone_until_ < WINDOW;
    pause_ = again ? std::min(2 * pause_, LONGEST_PAUSE) : FIRST_PAUSE;
    alone_until_ = window_began_ = now + pause_;
    stalled_ = {};
}

bool Pool::work_once() {
    uint64_t ticket = ticket_.load(std::memory_order_acquire);
    for (;;) {
        const auto task = static_cast<uint32_t>(ticket);
        if (task >= n_tasks_.load(std::memory_order_acquire)) return false;
        const Call call = call_.load(std::memory_order_acquire);
        const void* context = context_.load(std::memory_order_acquire);
        if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel, std::memory_order_acquire)) {
            try {
                call(context, task);
            } catch (...) {
                keep_exception();
            }
            n_done_.fetch_add(1, std::memory_order_release);
            return true;
        }
    }
}

void Pool::keep_exception() {
    if (!failed_.exchange(true)) exception_ = std::current_exception();
}

void Pool::worker() {
    auto idle_since = Clock::now();
    for (uint32_t spins = 0;; ++spins) {
        if (work_once()) {
            while (work_once()) {
            }
            idle_since = Clock::now();
            continue;
        }
        relax();
        if (spins % 64) continue;
        const auto idle = Clock::now() - idle_since;
        if (idle < SPIN) {
            if (idle > YIELD_AFTER) std::this_thread::yield();
            continue;
        }
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
    static auto& instance = *new std::unique_ptr<Pool>(std::make_unique<Pool>(physical_cores()));
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
