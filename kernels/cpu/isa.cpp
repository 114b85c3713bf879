#include "isa.h"

#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#if defined(__x86_64__) || defined(_M_X64)
#define PAGEWELL_X86 1
#if defined(_MSC_VER)
#include <intrin.h>
#else
#include <cpuid.h>
#endif
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace pagewell {
namespace {

#if PAGEWELL_X86

struct Registers {
    uint32_t a = 0, b = 0, c = 0, d = 0;
};

Registers cpuid(uint32_t leaf, uint32_t subleaf) {
    Registers r;
#if defined(_MSC_VER)
    int out[4];
    __cpuidex(out, static_cast<int>(leaf), static_cast<int>(subleaf));
    r = {uint32_t(out[0]), uint32_t(out[1]), uint32_t(out[2]), uint32_t(out[3])};
#else
    __get_cpuid_count(leaf, subleaf, &r.a, &r.b, &r.c, &r.d);
#endif
    return r;
}

uint64_t enabled_state() {
#if defined(_MSC_VER)
    return _xgetbv(0);
#else
    uint32_t low, high;
    asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return uint64_t(high) << 32 | low;
#endif
}

bool bit(uint32_t word, int i) {
    return word >> i & 1;
}

std::vector<std::string> detect() {
    // Intel SDM volume 2A, CPUID: leaf 1 and leaf 7 feature flags; XCR0 bits 1, 2 (AVX), 5 to 7 (AVX-512).
    const Registers one = cpuid(1, 0);
    if (!bit(one.c, 27)) return {};
    const uint64_t state = enabled_state();
    const Registers seven = cpuid(7, 0), more = cpuid(7, 1);
    const bool avx2 = (state & 6) == 6 && bit(one.c, 12) && bit(one.c, 29) && bit(seven.b, 5) && bit(seven.b, 8);
    if (!avx2) return {};
    std::vector<std::string> found{"avx2"};
    if (bit(more.a, 4)) found.push_back("avxvnni");
    const bool avx512 = (state & 0xe6) == 0xe6 && bit(seven.b, 16) && bit(seven.b, 17) && bit(seven.b, 30) &&
                        bit(seven.b, 31) && bit(seven.c, 11);
    if (avx512) found.push_back("avx512");
    return found;
}

#elif defined(__aarch64__)

std::vector<std::string> detect() {
#if defined(__APPLE__)
    return {"neon"};
#elif defined(__linux__)
    // asm/hwcap.h of Linux: float16 arithmetic and dot products.
    constexpr unsigned long ASIMDHP = 1ul << 10, ASIMDDP = 1ul << 20, needed = ASIMDHP | ASIMDDP;
    if ((getauxval(AT_HWCAP) & needed) == needed) return {"neon"};
    return {};
#else
    return {};
#endif
}

#else

std::vector<std::string> detect() {
    return {};
}

#endif

// Index of a usable level; `who` asks for it.
int index_of(const std::string& name, const char* who) {
    std::string usable_ones;
    for (const auto& usable : usable_levels()) {
        usable_ones += (usable_ones.empty() ? "" : ", ") + usable;
        if (usable != name) continue;
        for (int i = 0; i < N_LEVELS; ++i) {
            if (name == LEVELS[i]) return i;
        }
    }
    throw std::invalid_argument(who + name + ", which is none of the instruction sets that this machine and this build have: " +
                                (usable_ones.empty() ? "none" : usable_ones) + ".");
}

int first_level() {
    const char* wanted = std::getenv("PAGEWELL_ISA");
    if (wanted != nullptr && *wanted != 0) return index_of(wanted, "PAGEWELL_ISA is ");
    return usable_levels().empty() ? -1 : index_of(usable_levels().back(), "");
}

int& current() {
    static int index = first_level();
    return index;
}

}  // namespace

std::vector<std::string> usable_levels() {
    static const std::vector<std::string> levels = detect();
    return levels;
}

std::string level() {
    return current() < 0 ? "none" : LEVELS[current()];
}

void set_level(const std::string& name) {
    current() = index_of(name, "The level is to be ");
}

int level_index() {
    return current();
}

}  // namespace pagewell
