// Writes the entropy codes of zstd: FSE and Huffman (RFC 8878, section 4). No
// I/O. zstd_entropy.h reads them.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "delta/zstd_entropy.h"

namespace haulway::delta {

// A BitWriter writes numbers of some bits, the first one lowest. Requires: 8
// bytes may be written after the end.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : at_(out) {}

  // Requires: `value` has at most `count` bits; at most 56 bits since Flush().
  void Add(uint64_t value, unsigned count) {
    bits_ |= value << count_;
    count_ += count;
  }
  void Flush() {
    std::memcpy(at_, &bits_, sizeof(bits_));
    at_ += count_ >> 3;
    bits_ >>= count_ & ~7u;
    count_ &= 7;
  }
  // Returns the end of the bytes; what is left of the last one is zeros.
  uint8_t* Finish() {
    Flush();
    return at_ + (count_ > 0 ? 1 : 0);
  }
  // Finish() with the bit that marks the end of a stream that is read from
  // there (BackwardBits).
  uint8_t* FinishStream() {
    Add(1, 1);
    return Finish();
  }

 private:
  uint8_t* at_;
  uint64_t bits_ = 0;
  unsigned count_ = 0;
};

// Makes counts for a table from how often symbols occur. `total`: the sum of
// `occurs`, at least 2. Requires: at least two symbols occur, and at most 64
// are given.
FseCounts ScaleCounts(std::span<const uint32_t> occurs, uint32_t total,
                      int most_log);
// Writes what ReadFseCounts() reads. Returns its end.
uint8_t* WriteFseCounts(const FseCounts& counts, uint8_t* out);

// An FseEncoder has a table of FSE. Symbols are encoded from the last to the
// first one.
class FseEncoder {
 public:
  static constexpr int kMostLog = 9;

  void Make(const FseCounts& counts);
  // Makes an encoder of streams of one symbol, which take no bits.
  void MakeRepeated() {
    log_ = 0;
    symbols_.fill({});
    next_.fill(0);
  }

  // Returns the state for the last symbol.
  uint32_t Begin(unsigned symbol) const {
    const Symbol& coded = symbols_[symbol];
    const uint32_t bits = (coded.bits + (1u << 15)) >> 16;
    const uint32_t state = (bits << 16) - coded.bits;
    return next_[static_cast<uint32_t>(static_cast<int32_t>(state >> bits) +
                                       coded.base)];
  }
  // Adds at most kMostLog bits.
  void Encode(unsigned symbol, uint32_t* state, BitWriter* out) const {
    const Symbol& coded = symbols_[symbol];
    const uint32_t bits = (*state + coded.bits) >> 16;
    out->Add(*state & ((1u << bits) - 1), bits);
    *state = next_[static_cast<uint32_t>(static_cast<int32_t>(*state >> bits) +
                                         coded.base)];
  }
  void End(uint32_t state, BitWriter* out) const {
    out->Add(state & ((1u << log_) - 1), static_cast<unsigned>(log_));
  }

 private:
  // A state gives (state + bits) >> 16 bits, and the next one is at base plus
  // what is left of it.
  struct Symbol {
    uint32_t bits = 0;
    int32_t base = 0;
  };
  int log_ = 0;
  std::array<Symbol, 64> symbols_;
  std::array<uint16_t, size_t{1} << kMostLog> next_;
};

// How often each byte occurs.
using ByteCounts = std::array<uint32_t, 256>;

// A HuffmanEncoder has a code of literals.
class HuffmanEncoder {
 public:
  // How many bytes WriteDescription() writes at most.
  static constexpr size_t kMostDescription = 129;

  // Makes a code. Returns false if there is none, as for a single literal.
  bool Make(const ByteCounts& counts);
  // Returns about how many bytes the literals take with the code.
  uint64_t Bytes(const ByteCounts& counts) const;

  // Write the code, and one stream, or four with their sizes. Return the end.
  uint8_t* WriteDescription(uint8_t* out) const;
  uint8_t* Encode(std::span<const uint8_t> literals, uint8_t* out) const;
  uint8_t* EncodeFour(std::span<const uint8_t> literals, uint8_t* out) const;

 private:
  struct Code {
    uint16_t bits = 0;
    uint16_t length = 0;
  };
  bool SetLengths(const ByteCounts& counts);
  void Describe();

  std::array<Code, 256> codes_;
  int log_ = 0;   // The length of the longest code.
  int last_ = 0;  // The largest literal.
  std::array<uint8_t, kMostDescription + 16> description_;
  size_t description_size_ = 0;
};

}  // namespace haulway::delta
