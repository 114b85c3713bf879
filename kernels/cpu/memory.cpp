#include "memory.h"

#include <cstdlib>
#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace pagewell {
namespace {

constexpr size_t LINE = 64, LARGE_PAGE = size_t(2) << 20, REGION = size_t(32) << 20;

uint8_t* allocate(size_t n_bytes, size_t alignment) {
    return static_cast<uint8_t*>(::operator new(n_bytes, std::align_val_t(alignment)));
}

// A stretch of large pages that many matrices share: a small model's matrices are smaller than one page.
struct Region {
    uint8_t* data;
    size_t size, used = 0;

    explicit Region(size_t n_bytes) : data(allocate(n_bytes, LARGE_PAGE)), size(n_bytes) {
#if defined(__linux__)
        madvise(data, n_bytes, MADV_HUGEPAGE);  // fewer address translations; a system without large pages ignores it
#endif
    }
    ~Region() { ::operator delete(data, std::align_val_t(LARGE_PAGE)); }
};

}  // namespace

std::shared_ptr<uint8_t> weight_memory(size_t n_bytes) {
    static std::mutex mutex;
    static std::weak_ptr<Region> last;
    n_bytes = round_up(n_bytes, LINE);
    std::lock_guard lock(mutex);
    auto region = last.lock();
    if (!region || region->size - region->used < n_bytes) {
        region = std::make_shared<Region>(round_up(n_bytes > REGION ? n_bytes : REGION, LARGE_PAGE));
        last = region;
    }
    uint8_t* data = region->data + region->used;
    region->used += n_bytes;
    return {region, data};
}

Buffer::~Buffer() {
    release();
}

uint8_t* Buffer::get(size_t n_bytes) {
    if (size_ < n_bytes) {
        release();
        data_ = allocate(n_bytes, LINE);
        size_ = n_bytes;
    }
    return data_;
}

void Buffer::release() {
    if (data_ != nullptr) ::operator delete(data_, std::align_val_t(LINE));
    data_ = nullptr;
    size_ = 0;
}

uint8_t* scratch(size_t n_bytes) {
    thread_local Buffer buffer;
    return buffer.get(n_bytes);
}

}  // namespace pagewell
