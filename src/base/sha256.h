// SHA-256, as the processor does it best.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace haulway {

using Sha256Value = std::array<std::byte, 32>;

// A Sha256 takes bytes in pieces and gives their digest. Not for two threads
// at once.
class Sha256 {
 public:
  Sha256();

  void Update(std::span<const std::byte> bytes);
  // The same as Update() of each with the piece of its number, in lock-step
  // where that is faster. Requires: no Sha256 is there twice.
  static void UpdateTogether(
      std::span<Sha256* const> digests,
      std::span<const std::span<const std::byte>> pieces);
  // Returns the hash of all bytes so far; the object starts anew.
  Sha256Value Finish();

 private:
  static constexpr size_t kBlockBytes = 64;

  void Begin();
  // Takes what completes a block that was begun, and returns the rest.
  std::span<const std::byte> FillBlock(std::span<const std::byte> bytes);
  // Keeps the start of a block.
  void Keep(std::span<const std::byte> bytes);

  std::array<uint32_t, 8> state_;
  std::array<std::byte, kBlockBytes> block_;
  uint64_t bytes_;  // In all; those past the last whole block are in block_.
};

}  // namespace haulway
