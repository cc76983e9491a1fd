// BLAKE3, as https://github.com/BLAKE3-team/BLAKE3-specs defines it: the hash
// of 32 bytes, without a key.
//
// Debian 12 has no package of its C library.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace haulway::delta {

// A Blake3 hashes bytes in order. Sixteen chunks of 1 KiB are compressed at
// once, in vector lanes. Threads: one at a time.
class Blake3 {
 public:
  void Update(std::span<const std::byte> bytes);
  std::array<std::byte, 32> Finish();

 private:
  using Chain = std::array<uint32_t, 8>;

  // Adds the chaining value of a whole chunk that is not the last.
  void Push(Chain value);
  void HashChunks(const std::byte* chunks, size_t count);

  std::vector<std::byte> rest_;  // Bytes of chunks not compressed yet.
  std::vector<Chain> stack_;     // One for each whole subtree, by size.
  uint64_t chunks_ = 0;          // Number of chunks in the stack.
};

}  // namespace haulway::delta
