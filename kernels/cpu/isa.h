// Which instruction set the kernels use: each level's kernels are compiled on their own, and one level is picked at run time.
#pragma once

#include <string>
#include <vector>

// For what kernels of several levels call: compiled for each by itself.
#define PW_INLINE inline __attribute__((always_inline))

namespace pagewell {

// From the slowest to the fastest; what a processor must have:
//   avx2    AVX2, FMA, F16C, BMI2
//   avxvnni avx2 and AVX-VNNI (256-bit integer dot products)
//   avx512  avx2 and AVX-512 F, BW, DQ, VL, VNNI
//   neon    ARM with dot products and float16 arithmetic (the only level of its platform)
// "none" on a machine that has none of them: the native operators are not used there.

// Levels that this machine can run and this build has, rising.
std::vector<std::string> usable_levels();

// The level in use, or "none". At first the highest, or the one that PAGEWELL_ISA names. Throws std::invalid_argument, as
// every operator then does, where that names one that cannot be had.
std::string level();

// Use a level from usable_levels() from now on, for tests and comparisons. Throws std::invalid_argument for another one.
void set_level(const std::string& name);

// Index of the level in use among LEVELS, or -1.
int level_index();

inline constexpr const char* LEVELS[] = {"avx2", "avxvnni", "avx512", "neon"};
inline constexpr int N_LEVELS = 4;

}  // namespace pagewell

// PAGEWELL_TABLES(Type, name): inside namespace pagewell, after struct Type with the function pointers of an area. Each level's kernel source defines
// `const Type name = {...};` in its namespace; name_kernels() is the one of the level in use.
#if defined(__x86_64__) || defined(_M_X64)
#define PAGEWELL_TABLES(Type, name)            \
    namespace avx2 {                           \
    extern const Type name;                    \
    }                                          \
    namespace avxvnni {                        \
    extern const Type name;                    \
    }                                          \
    namespace avx512 {                         \
    extern const Type name;                    \
    }                                          \
    inline const Type& name##_kernels() {      \
        switch (level_index()) {               \
            case 1: return avxvnni::name;      \
            case 2: return avx512::name;       \
            default: return avx2::name;        \
        }                                      \
    }
#else
#define PAGEWELL_TABLES(Type, name)        \
    namespace neon {                       \
    extern const Type name;                \
    }                                      \
    inline const Type& name##_kernels() {  \
        return neon::name;                 \
    }
#endif
