// The entropy codes of zstd: FSE and Huffman (RFC 8878, section 4). No I/O.
//
// All functions take bytes from files: they return false if these contradict
// the format, and read nothing outside of them.

#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace haulway::delta {

// A BackwardBits reads a stream of bits from its end to its beginning.
class BackwardBits {
 public:
  // Fails unless the last byte has the bit that marks the end.
  bool Open(std::span<const uint8_t> bytes) {
    if (bytes.empty() || bytes.back() == 0) return false;
    start_ = bytes.data();
    used_ = 8 - static_cast<unsigned>(std::bit_width(bytes.back()) - 1);
    if (bytes.size() >= sizeof(bits_)) {
      at_ = bytes.data() + bytes.size() - sizeof(bits_);
      std::memcpy(&bits_, at_, sizeof(bits_));
    } else {
      at_ = start_;
      bits_ = 0;
      std::memcpy(&bits_, at_, bytes.size());
      used_ += static_cast<unsigned>(8 * (sizeof(bits_) - bytes.size()));
    }
    return true;
  }

  // Returns the next bits; anything after the beginning of the stream.
  // Requires: count < 32; at most 57 bits since Refill().
  uint64_t Peek(unsigned count) const {
    return ((bits_ << (used_ & 63)) >> 1) >> (63 - count);
  }
  void Skip(unsigned count) { used_ += count; }
  uint64_t Read(unsigned count) {
    const uint64_t bits = Peek(count);
    Skip(count);
    return bits;
  }

  // Makes at least 57 bits available, or all that are left.
  void Refill() {
    if (has_many()) [[likely]] {
      at_ -= used_ >> 3;
      used_ &= 7;
      std::memcpy(&bits_, at_, sizeof(bits_));
    } else {
      RefillAtStart();
    }
  }

  // Returns whether Refill() makes 57 bits available. Requires: at most 57 were
  // read since the last one.
  bool has_many() const { return at_ - start_ >= 8; }
  // Whether more bits were read than there are; only after Refill().
  bool is_over() const { return used_ > 64; }
  // Whether exactly all bits were read; only after Refill().
  bool is_at_end() const { return at_ == start_ && used_ == 64; }

 private:
  void RefillAtStart() {
    if (used_ > 64) return;
    const size_t bytes =
        std::min<size_t>(used_ >> 3, static_cast<size_t>(at_ - start_));
    if (bytes == 0) return;
    at_ -= bytes;
    used_ -= static_cast<unsigned>(8 * bytes);
    std::memcpy(&bits_, at_, sizeof(bits_));
  }

  const uint8_t* start_ = nullptr;
  const uint8_t* at_ = nullptr;  // The first byte in bits_.
  uint64_t bits_ = 0;
  unsigned used_ = 0;  // Bits of bits_ that were read, from the highest on.
};

// How often each symbol occurs in a table of FSE; -1 is less than once.
struct FseCounts {
  std::array<int16_t, 64> counts{};
  int symbols = 0;
  int log = 0;  // The table has two to this power entries.
};

// Reads counts for at most `most` symbols. Sets `used` to their size in bytes.
bool ReadFseCounts(std::span<const uint8_t> bytes, int most, int most_log,
                   FseCounts* counts, size_t* used);

struct FseEntry {
  uint16_t next = 0;  // The next state, without the bits that are added.
  uint8_t bits = 0;
  uint8_t symbol = 0;
};
// Fills the first 1 << counts.log entries.
bool MakeFseTable(const FseCounts& counts, std::span<FseEntry> table);

// A HuffmanCode decodes literals.
class HuffmanCode {
 public:
  // Reads the description of a code. Sets `used` to its size in bytes.
  bool Open(std::span<const uint8_t> bytes, size_t* used);
  bool is_open() const { return log_ != 0; }

  // Decodes exactly out.size() literals from one stream, or from four.
  bool Decode(std::span<const uint8_t> stream, std::span<uint8_t> out) const;
  bool DecodeFour(std::span<const uint8_t> streams,
                  std::span<uint8_t> out) const;

 private:
  static constexpr int kMostBits = 11;
  struct Symbol {
    uint8_t value;
    uint8_t bits;
  };
  Symbol Next(const BackwardBits& bits) const {
    return table_[bits.Peek(static_cast<unsigned>(log_))];
  }

  int log_ = 0;
  std::array<Symbol, size_t{1} << kMostBits> table_;
};

}  // namespace haulway::delta
