// Folds the input of a CRC-32 to 16 bytes with vector instructions. The
// implementation is compiled with extra instruction sets. It may include
// nothing else: inline functions compiled that way would be shared with the
// rest of the program.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace haulway {

inline constexpr size_t kCrc32FoldBytes = 256;

// Multipliers that move 16 bytes forward by a number of bits. They alternate:
// one for the first 8 of the 16 bytes, one for the last 8.
struct Crc32Folds {
  using Fold = std::array<uint64_t, 8>;
  Fold by_2048;
  Fold by_512;
  Fold by_128;
};

// Fills `folded` with 16 bytes whose CRC from register value 0 equals the CRC
// of `blocks` blocks of kCrc32FoldBytes from register value `state`. Requires:
// at least one block; AVX-512 and VPCLMULQDQ.
void FoldCrc32Avx512(const Crc32Folds& folds, uint32_t state,
                     const std::byte* bytes, size_t blocks, std::byte* folded);

}  // namespace haulway
