// SHA-256 with the fastest instructions of the processor.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace haulway {

using Sha256Value = std::array<std::byte, 32>;

// A Sha256 computes the digest of bytes that arrive in pieces. Threads: one at
// a time.
class Sha256 {
 public:
  Sha256();

  void Update(std::span<const std::byte> bytes);
  // Calls Update() on each digest with the piece of the same index, in
  // lock-step where that is faster. Requires: the digests are distinct.
  static void UpdateTogether(
      std::span<Sha256* const> digests,
      std::span<const std::span<const std::byte>> pieces);
  // Returns the digest of all bytes so far, and resets the object.
  Sha256Value Finish();

 private:
  static constexpr size_t kBlockBytes = 64;

  void Begin();
  // Completes a block begun earlier, and returns the remaining bytes.
  std::span<const std::byte> FillBlock(std::span<const std::byte> bytes);
  // Stores the start of a block.
  void Keep(std::span<const std::byte> bytes);

  std::array<uint32_t, 8> state_;
  std::array<std::byte, kBlockBytes> block_;
  uint64_t bytes_;  // Total; bytes after the last whole block are in block_.
};

}  // namespace haulway
