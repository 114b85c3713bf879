#include "limits.h"

#include <atomic>
#include <chrono>

#include "binding.h"
#include "pool.h"

namespace pagewell {
namespace {

constexpr int64_t READ_TASK = 1 << 20;
constexpr int64_t TASKS_PER_THREAD = 32;  // so that a thread that the system interrupts does not hold up the others

std::atomic<uint64_t> sink;

template <typename F>
double seconds_of(int64_t n_tasks, const F& fn) {
    pool().run(pool().n_threads() * 4, [](int64_t) {});  // wakes the threads
    const auto began = std::chrono::steady_clock::now();
    pool().run(n_tasks, fn);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

// GB/s of reading a buffer `repeats` times, in tasks of a megabyte, in order. n_bytes is a multiple of 1024.
double read_rate(uintptr_t data, int64_t n_bytes, int64_t ahead, int64_t repeats) {
    const auto* bytes = address<const uint8_t>(data);
    const int64_t n_tasks = (n_bytes + READ_TASK - 1) / READ_TASK;
    const auto read = limits_kernels().read;
    const double seconds = seconds_of(n_tasks * repeats, [=](int64_t task) {
        const int64_t start = task % n_tasks * READ_TASK;
        sink += read(bytes + start, start + READ_TASK < n_bytes ? READ_TASK : n_bytes - start, ahead);
    });
    return double(n_bytes) * double(repeats) / seconds * 1e-9;
}

// 1e9 operations a second of all threads together, each with about n_rounds rounds.
double f32_rate(int64_t n_rounds) {
    const auto& kernels = limits_kernels();
    const int64_t n_tasks = pool().n_threads() * TASKS_PER_THREAD, n_each = n_rounds / TASKS_PER_THREAD + 1;
    const double seconds = seconds_of(n_tasks, [&](int64_t) { sink += uint64_t(kernels.f32(n_each)); });
    return double(n_tasks) * double(n_each) * double(kernels.f32_ops) / seconds * 1e-9;
}

double int8_rate(int64_t n_rounds) {
    const auto& kernels = limits_kernels();
    const int64_t n_tasks = pool().n_threads() * TASKS_PER_THREAD, n_each = n_rounds / TASKS_PER_THREAD + 1;
    const double seconds = seconds_of(n_tasks, [&](int64_t) { sink += uint64_t(kernels.int8(n_each)); });
    return double(n_tasks) * double(n_each) * double(kernels.int8_ops) / seconds * 1e-9;
}

}  // namespace

void bind_limits(nb::module_& m) {
    const auto release = nb::call_guard<nb::gil_scoped_release>();
    m.def("read_rate", &read_rate, nb::arg("data"), nb::arg("n_bytes"), nb::arg("ahead"), nb::arg("repeats"), release,
          "GB/s of reading a buffer, prefetching `ahead` bytes ahead.");
    m.def("f32_rate", &f32_rate, nb::arg("n_rounds"), release, "GFLOP/s of multiplying and adding in registers.");
    m.def("int8_rate", &int8_rate, nb::arg("n_rounds"), release, "GOP/s of 8-bit multiplying and adding in registers.");
}

}  // namespace pagewell
