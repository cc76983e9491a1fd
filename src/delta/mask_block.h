// Decodes a compressed block of zstd (RFC 8878, section 3.1.1.3) into a mask,
// and combines the mask with the bytes of a tensor. No I/O.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "delta/zstd_entropy.h"

namespace haulway::delta {

// A MaskCombiner holds the bytes of the mask that matches may refer to, and
// changes the bytes of a tensor as they are written. Zeros are neither written
// nor combined.
struct MaskCombiner {
  // How many bytes after the end of the mask are written to.
  static constexpr size_t kSlack = 32;

  uint8_t* mask;     // Zeros from `at` to limit + kSlack.
  uint8_t* tensor;   // The byte of the tensor at mask[begin].
  size_t begin;      // Where the block begins,
  size_t at;         // and where the next byte goes.
  size_t limit;      // Where the block must end at the latest.
  uint64_t all = 0;  // All bytes of the mask, combined by or.

  // Combine uncompressed bytes, or one byte that is repeated. Return false if
  // the block gets too long.
  bool AddRaw(std::span<const uint8_t> bytes);
  bool AddRepeated(uint8_t value, size_t length);

 private:
  friend class BlockDecoder;

  // As AddRaw(). Requires: 8 bytes may be read after the literals.
  bool AddLiterals(const uint8_t* literals, size_t length);
  // Also returns false if the match begins before the mask does.
  bool AddMatch(size_t offset, size_t length);
  bool AddRun(uint8_t value, size_t length);
  void Put(uint64_t bytes, size_t length);
};

// A BlockDecoder keeps what blocks take over from earlier ones of their frame.
class BlockDecoder {
 public:
  // The most bytes of a block, compressed or not.
  static constexpr size_t kMostBytes = size_t{128} << 10;

  BlockDecoder();

  // Returns false if the block contradicts the format, or MaskCombiner does.
  bool Decode(std::span<const uint8_t> block, MaskCombiner* out);

 private:
  // A state of FSE in one word, so that it is loaded at once: from the lowest
  // bits on, 16 bits of the next state, 8 of how many bits are added to it, 8
  // of how many are added to the value, and 32 bits of the value.
  using Entry = uint64_t;
  static Entry Pack(const FseEntry& state, uint32_t value, unsigned extra) {
    return state.next | uint64_t{state.bits} << 16 | uint64_t{extra} << 24 |
           uint64_t{value} << 32;
  }
  static uint64_t NextOf(Entry entry) { return entry & 0xFFFF; }
  static unsigned StepOf(Entry entry) { return (entry >> 16) & 0xFF; }
  static unsigned ExtraOf(Entry entry) { return (entry >> 24) & 0xFF; }
  // A table of one of the three parts of sequences.
  struct Table {
    int log = -1;  // -1 if there is none yet.
    std::array<Entry, 512> entries;
  };
  struct Code;

  bool ReadLiterals(std::span<const uint8_t>* block, size_t most);
  bool ReadTable(int mode, const Code& code, std::span<const uint8_t>* block,
                 Table* table);
  static bool SetTable(const FseCounts& counts, const Code& code, Table* table);
  bool RunSequences(std::span<const uint8_t> stream, uint32_t count,
                    MaskCombiner* out);

  HuffmanCode huffman_;
  Table literal_lengths_;
  Table offsets_;
  Table match_lengths_;
  std::array<uint64_t, 3> repeats_ = {1, 4, 8};
  std::vector<uint8_t> literals_;
  size_t literal_count_ = 0;
};

}  // namespace haulway::delta
