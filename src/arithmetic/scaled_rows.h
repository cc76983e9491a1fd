// Dequantizes rows of numbers that share scales.
//
// An element is (q - zero) * scale: one float32 difference, which is exact, and
// one float32 product. The product is rounded to `through`, then to `to`. These
// functions read only what they are given.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/dtype.h"

namespace haulway::arithmetic {

// How the numbers of a row are stored.
enum class Numbers : uint8_t {
  kF8,           // One byte each, of RowTerms::stored.
  kI8,           // One signed byte each.
  kE2M1,         // Two in a byte, the low nibble first.
  kE2M3,         // Four in three bytes, little-endian.
  kPacked,       // `bits` each, dense from the lowest bit on, minus 2^(bits-1).
  kPackedWords,  // As many as fit into a word of 32 bits; the rest is unused.
  kMapped,       // Two in a byte, the high nibble first, by a map of 16.
};

// Elements are processed in tiles of columns, whose codes begin at a byte.
inline constexpr uint64_t kTile = 4096;

struct RowTerms {
  Numbers code = Numbers::kF8;
  DType stored = DType::kF8E4M3;  // For kF8.
  int bits = 8;                   // For kPacked and kPackedWords: 1 to 8.
  uint64_t columns = 0;
  // Columns that share a scale: column c has number c / group, below `groups`.
  uint64_t group = 0;
  uint64_t groups = 0;
  DType scale = DType::kF32;    // kU8: scales are exponents of E8M0.
  DType through = DType::kF32;  // kF32: the product is not rounded.
  // The product is multiplied by this, and rounded again, if it is not 1.
  float after = 1;
  DType to = DType::kF32;
};

// Widens scales to float32, exactly. A kU8 is the power of two 2^(code - 127),
// infinite for 255.
void WidenScales(DType dtype, const std::byte* scales, uint64_t count,
                 float* out);

// Unpacks columns [first, first + count) of a row to float32. `first` is a
// multiple of kTile. `map`: 16 numbers, for kMapped.
void Unpack(const RowTerms& terms, const std::byte* row, uint64_t first,
            uint64_t count, const float* map, float* out);

// What a row is multiplied by.
struct RowScales {
  std::span<const float> scales;  // terms.groups of them.
  std::span<const float> zeros;   // As many, or none.
  // The number of each column's scale instead of c / group; empty: none. Each
  // must be below terms.groups.
  std::span<const uint32_t> group_of;
};

// Computes columns [first, first + count) from unpacked numbers, which are
// overwritten.
void ScaleRow(const RowTerms& terms, const RowScales& scales, uint64_t first,
              uint64_t count, float* numbers, std::byte* out);

// Rounds numbers to a floating-point dtype and widens them again.
void RoundThrough(DType dtype, float* numbers, uint64_t count);

// Returns bits [at, at + bits) of words of 32 bits; a value may lie in two
// words, `stride` bytes apart.
uint32_t BitsAt(const std::byte* words, uint64_t stride, uint64_t at, int bits);

}  // namespace haulway::arithmetic
