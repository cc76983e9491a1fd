// Encodes masks of changed bits as blocks of zstd (RFC 8878, 3.1.1.2). No I/O.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "delta/entropy_encoder.h"
#include "haulway/status.h"

namespace haulway::delta {

// A MaskEncoder compares bytes block by block. Each block means the same after
// any others. Threads: one at a time.
class MaskEncoder {
 public:
  // The most bytes that a block may have.
  static constexpr size_t kMostBytes = size_t{128} << 10;

  // Fails with kLimit if there is no memory.
  static Result<MaskEncoder> Make();

  // Makes the mask of the bits that differ; returns whether any do. Requires:
  // both have the same size, of 1 to kMostBytes bytes.
  bool Compare(std::span<const std::byte> before,
               std::span<const std::byte> after);
  // Compare() that also makes `tensor` equal to `after`, of which each byte is
  // read once.
  bool Replace(std::span<std::byte> tensor, std::span<const std::byte> after);

  std::span<const std::byte> mask() const {
    return std::as_bytes(std::span(mask_.get(), size_));
  }
  // Returns whether the mask has runs of zeros, which take few bytes as a
  // block.
  bool has_runs() const { return runs_ != 0; }

  // Returns the mask as a block, of at most kMostBytes + 3 bytes. It is valid
  // until the next call.
  std::span<const std::byte> Encode(bool is_last);

  // Returns a block of `size` zeros, which is not the last one.
  static std::array<std::byte, 4> Unchanged(size_t size);

 private:
  // What zstd calls a sequence: literals, and a match one byte back.
  struct Run {
    uint32_t literals;
    uint32_t match;  // Its length, less the shortest one.
  };
  using CodeCounts = std::array<uint32_t, 64>;

  MaskEncoder() = default;
  void FindRuns(const uint32_t* changed_end);
  uint8_t* WriteLiterals(uint8_t* out);
  uint8_t* WriteRuns(uint8_t* out);
  uint8_t* WriteTable(const CodeCounts& occurs, const FseCounts& usual,
                      int* mode, FseEncoder* encoder, uint8_t* out) const;

  size_t size_ = 0;
  std::unique_ptr<uint8_t[]> mask_;
  std::unique_ptr<uint32_t[]> changed_;  // Indices in the mask, ascending.
  std::unique_ptr<uint8_t[]> literals_;
  size_t literal_count_ = 0;
  std::unique_ptr<Run[]> found_;
  size_t runs_ = 0;
  std::unique_ptr<uint8_t[]> block_;
  HuffmanEncoder huffman_;
  FseEncoder literal_lengths_;
  FseEncoder match_lengths_;
};

}  // namespace haulway::delta
