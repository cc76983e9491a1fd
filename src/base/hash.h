// Hashing of names and keys that come from files.
//
// The author of a file must not be able to choose names that all collide, which
// would make table operations quadratic. So every hash is keyed by a seed that
// differs between processes.

#pragma once

#include <sys/auxv.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace haulway {

inline constexpr uint64_t kMix1 = 0x9E3779B97F4A7C15;
inline constexpr uint64_t kMix2 = 0xD6E8FEB86659FD93;

// Returns the XOR of the two halves of the 128-bit product.
inline uint64_t Mix(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

inline uint64_t HashText(std::string_view text, uint64_t seed) {
  uint64_t hash = seed ^ (text.size() * kMix1);
  const char* data = text.data();
  size_t left = text.size();
  uint64_t word = 0;
  for (; left >= 8; left -= 8, data += 8) {
    std::memcpy(&word, data, 8);
    hash = Mix(hash ^ word, kMix2 ^ seed);
  }
  word = 0;
  if (left > 0) std::memcpy(&word, data, left);
  return Mix(hash ^ word, kMix1 ^ seed);
}

// Returns a seed that is constant within a process, derived from random bytes
// that the kernel supplies.
inline uint64_t ProcessSeed() {
  uint64_t seed = 0;
  const auto* random = reinterpret_cast<const void*>(::getauxval(AT_RANDOM));
  if (random != nullptr) std::memcpy(&seed, random, sizeof(seed));
  // The stack protector uses these bytes too, so never store them unmixed.
  return Mix(seed ^ kMix1, kMix2);
}

}  // namespace haulway
