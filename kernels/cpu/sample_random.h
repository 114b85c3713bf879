// Random numbers that are a function of a key and a counter.
#pragma once

#include <cstdint>

namespace pagewell {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC11), in place.
inline void philox4x32(uint32_t counter[4], uint64_t key) {
    uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * counter[0], b = uint64_t{0xCD9E8D57} * counter[2];
        counter[0] = static_cast<uint32_t>(b >> 32) ^ counter[1] ^ k0;
        counter[1] = static_cast<uint32_t>(b);
        counter[2] = static_cast<uint32_t>(a >> 32) ^ counter[3] ^ k1;
        counter[3] = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
}

// In [0, 1), with 53 random bits.
inline double uniform(int64_t seed, int64_t choice, int64_t position) {
    const uint64_t place = static_cast<uint64_t>(position);
    uint32_t words[4] = {static_cast<uint32_t>(place), static_cast<uint32_t>(place >> 32), static_cast<uint32_t>(choice), 0};
    philox4x32(words, static_cast<uint64_t>(seed));
    return (static_cast<double>(words[0] >> 5) * 67108864.0 + static_cast<double>(words[1] >> 6)) / 9007199254740992.0;
}

}  // namespace pagewell
