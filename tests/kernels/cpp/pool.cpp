#include "kernels/cpu/pool.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sys/resource.h>
#include <unistd.h>
#endif

#include "check.h"

namespace pagewell {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

// A machine with other things to do keeps threads from their cores, and the pool then works alone for a while: what needs
// several threads is tried again, with a new pool.
constexpr auto PATIENCE = 100ms;
constexpr int TRIES = 50;

// How often each task of a job was done, which should be once.
struct Counts {
    std::vector<std::atomic<int>> done;

    explicit Counts(int64_t n_tasks) : done(static_cast<size_t>(n_tasks)) {}
    void add(int64_t task) { ++done[static_cast<size_t>(task)]; }
    bool once() const {
        for (const auto& n : done) {
            if (n != 1) return false;
        }
        return true;
    }
};

bool runs_once(Pool& pool, int64_t n_tasks) {
    Counts counts(n_tasks);
    pool.run(n_tasks, [&](int64_t task) { counts.add(task); });
    return counts.once();
}

// Lets as many tasks begin together as there are, so that each has a thread of its own.
class Meeting {
  public:
    explicit Meeting(int n) : missing_(n) {}
    bool wait() {
        --missing_;
        for (const auto until = Clock::now() + PATIENCE; missing_ > 0 && Clock::now() < until;) std::this_thread::yield();
        return missing_ <= 0;
    }

  private:
    std::atomic<int> missing_;
};

void spin(std::chrono::microseconds duration) {
    for (const auto until = Clock::now() + duration; Clock::now() < until;) {
    }
}

}  // namespace

PW_TEST(pool_tasks) {
    for (const int n_threads : {1, 2, 3, 9}) {
        check.about(std::to_string(n_threads) + " threads");
        Pool pool(n_threads);
        check.that(pool.n_threads() == n_threads, "as many threads as asked for");
        for (const int64_t n_tasks : {0, 1, 2, 3, 64, 1000}) {
            for (int i = 0; i < 20; ++i) check.that(runs_once(pool, n_tasks), "each task once");
        }
    }
}

PW_TEST(pool_wakes_threads_that_sleep) {
    for (const auto pause : {0us, 300us, 1500us, 5000us}) {
        check.about("after " + std::to_string(pause.count()) + " us");
        bool met = false;
        for (int i = 0; i < TRIES && !met; ++i) {
            Pool pool(3);
            check.that(runs_once(pool, 3), "each task once");
            std::this_thread::sleep_for(pause);
            Meeting meeting(3);
            std::atomic<int> n_met{0};
            pool.run(3, [&](int64_t) { n_met += meeting.wait(); });
            met = n_met == 3;
        }
        check.that(met, "all threads take part");
    }
}

PW_TEST(pool_serves_two_callers) {
    Pool pool(3);
    std::atomic<int> n_right{0};
    std::vector<std::thread> callers;
    for (int i = 0; i < 2; ++i) {
        callers.emplace_back([&, i] {
            for (int job = 0; job < 200; ++job) n_right += runs_once(pool, 2 + (job * 7 + i) % 40);
        });
    }
    for (auto& caller : callers) caller.join();
    check.that(n_right == 400, "each task of each caller once");
}

PW_TEST(pool_throws_what_a_task_throws) {
    const auto caller = std::this_thread::get_id();
    for (const bool on_caller : {true, false}) {
        check.about(on_caller ? "on the caller's thread" : "on a worker's thread");
        int n_thrown = 0;
        for (int i = 0; i < TRIES && n_thrown < 5; ++i) {
            Pool pool(3);
            Meeting meeting(3);
            std::atomic<bool> thrown{false};
            std::string caught;
            try {
                pool.run(3, [&](int64_t) {
                    meeting.wait();
                    if ((std::this_thread::get_id() == caller) != on_caller) return;
                    thrown = true;
                    throw std::runtime_error("broken");
                });
            } catch (const std::runtime_error& error) {
                caught = error.what();
            }
            check.that((caught == "broken") == thrown, "what a task throws is thrown");
            check.that(runs_once(pool, 50), "the next job is as any other");
            n_thrown += thrown;
        }
        check.that(n_thrown > 0, "tasks were begun there");
    }
    for (const int n_threads : {1, 3}) {
        Pool pool(n_threads);
        bool caught = false;
        try {
            pool.run(1, [](int64_t) { throw std::bad_alloc(); });
        } catch (const std::bad_alloc&) {
            caught = true;
        }
        check.that(caught, "thrown by a single task");
    }
}

// Workers that lose their cores are made up here by sleeping in their tasks.
PW_TEST(pool_works_alone_while_workers_are_kept_away) {
    const auto caller = std::this_thread::get_id();
    bool alone_then_shared = false;
    for (int i = 0; i < TRIES && !alone_then_shared; ++i) {
        Pool pool(2);
        std::atomic<bool> slept{false};
        for (int job = 0; job < 10 && !slept; ++job) {
            pool.run(2, [&](int64_t) {
                if (std::this_thread::get_id() == caller) {
                    for (const auto until = Clock::now() + 20ms; !slept && Clock::now() < until;) std::this_thread::yield();
                } else {
                    slept = true;
                    std::this_thread::sleep_for(30ms);
                }
            });
        }
        constexpr int64_t N_TASKS = 400, N_FIRST = 3;
        Counts counts(N_TASKS);
        std::atomic<int64_t> first_of_others{N_TASKS};
        pool.run(N_TASKS, [&](int64_t task) {
            counts.add(task);
            int64_t first = N_TASKS;
            if (std::this_thread::get_id() != caller) first_of_others.compare_exchange_strong(first, task);
            if (first_of_others == N_TASKS) spin(1ms);
        });
        check.that(counts.once(), "each task once");
        alone_then_shared = N_FIRST <= first_of_others && first_of_others < N_TASKS;
    }
    check.that(alone_then_shared, "a job begun alone is shared once the pause is over");
}

PW_TEST(pool_is_replaced) {
    const int before = pool().n_threads();
    for (const int n_threads : {3, 1, 0, 5}) {
        set_threads(n_threads);
        check.that(pool().n_threads() == (n_threads < 1 ? 1 : n_threads), "as many threads as asked for");
        check.that(runs_once(pool(), 100), "each task once");
    }
    set_threads(before);
}

#if defined(__linux__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
PW_TEST(pool_whose_threads_cannot_be_had) {
    int64_t n_pages = 0;
    std::ifstream("/proc/self/statm") >> n_pages;
    rlimit before{}, after{};
    getrlimit(RLIMIT_AS, &before);
    // Room for a few stacks.
    const rlimit tight{static_cast<rlim_t>(n_pages * sysconf(_SC_PAGESIZE)) + (64 << 20), before.rlim_max};
    setrlimit(RLIMIT_AS, &tight);
    getrlimit(RLIMIT_AS, &after);
    const int n_threads = pool().n_threads();
    bool refused = false;
    try {
        set_threads(100);
    } catch (const std::system_error&) {
        refused = true;
    }
    setrlimit(RLIMIT_AS, &before);
    check.that(refused || after.rlim_cur != tight.rlim_cur, "that is an error");  // an emulator does not limit memory
    if (refused) check.that(pool().n_threads() == n_threads, "the pool is as it was");
    set_threads(n_threads);
    check.that(runs_once(pool(), 100), "each task once");
}
#endif

}  // namespace pagewell
