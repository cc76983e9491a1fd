// Folding what a CRC-32 is taken of to 16 bytes, over vectors. Built for its
// own instructions; nothing else may be included by what is, since functions
// that are inline would be shared with the rest of the program.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace haulway {

inline constexpr size_t kCrc32FoldBytes = 256;

// What moves 16 bytes by that many bits, over others that follow: for the first
// 8 of them and the last, in turn.
struct Crc32Folds {
  using Fold = std::array<uint64_t, 8>;
  Fold by_2048;
  Fold by_512;
  Fold by_128;
};

// Fills `folded`, 16 bytes which a CRC register takes from 0 to where `blocks`
// runs of kCrc32FoldBytes, at least one, take it from `state`. Requires AVX-512
// and VPCLMULQDQ.
void FoldCrc32Avx512(const Crc32Folds& folds, uint32_t state,
                     const std::byte* bytes, size_t blocks, std::byte* folded);

}  // namespace haulway
