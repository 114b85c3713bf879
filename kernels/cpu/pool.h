// The one thread pool of all operators: spins between operators, sleeps between requests, and makes do with the caller's thread while other programs
// keep the workers from their cores.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace pagewell {

class Pool {
  public:
    // Threads that compute, the caller of run among them; at least 1. Throws std::system_error if they cannot be had.
    explicit Pool(int n_threads);
    ~Pool();
    Pool(const Pool&) = delete;
    Pool& operator=(const Pool&) = delete;

    int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

    // Call fn(task) once for each task in 0 .. n_tasks, on any threads, the caller's among them; returns when all are done.
    // Tasks are taken in order, so that neighbours in memory are read close in time. fn must not call run. What it throws is
    // thrown again, the first of several; the other tasks may have been done or not.
    template <typename F>
    void run(int64_t n_tasks, const F& fn) {
        if (n_tasks <= 1 || workers_.empty()) {
            for (int64_t task = 0; task < n_tasks; ++task) fn(task);
            return;
        }
        dispatch(n_tasks, [](const void* context, int64_t task) { (*static_cast<const F*>(context))(task); }, &fn);
    }

  private:
    using Call = void (*)(const void* context, int64_t task);

    void dispatch(int64_t n_tasks, Call call, const void* context);
    void share(int64_t first, int64_t n_tasks, Call call, const void* context);
    bool work_once();
    void keep_exception();
    void worker();
    void stop();
    void note_wait(std::chrono::nanoseconds worked, std::chrono::nanoseconds waited);

    // Tickets are (epoch << 32 | next task). A thread owns a task once its compare-exchange has taken the ticket; since
    // the epoch is part of it, one that comes late to a finished job takes nothing, and nobody waits for it.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<Call> call_{nullptr};
    std::atomic<const void*> context_{nullptr};
    std::atomic<uint32_t> n_tasks_{0};
    alignas(64) std::atomic<uint32_t> n_done_{0};
    alignas(64) std::atomic<uint32_t> wake_{0};
    std::atomic<int> n_parked_{0};
    std::atomic<bool> stopping_{false};
    // What the first of the job's tasks to throw has thrown, written before that task counts as done.
    std::atomic<bool> failed_{false};
    std::exception_ptr exception_;
    std::mutex one_job_;
    std::chrono::steady_clock::time_point alone_until_, window_began_;
    std::chrono::nanoseconds stalled_{0}, pause_{0};
    std::vector<std::thread> workers_;
};

// The process's pool. Made at first use with as many threads as there are physical cores. It outlives main: threads that are
// not waited for may still be computing then.
Pool& pool();

// Replace the pool; it stays as it is where that throws. Nothing may be running on it.
void set_threads(int n_threads);

// Physical cores that this process may run on, at least 1.
int physical_cores();

}  // namespace pagewell
