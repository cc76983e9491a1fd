// Unpacks weights that are stored transposed: an element of row r of the result
// lies in column r of what is stored.
//
// GPTQ packs `bits` of a column's values one after another into its words,
// dense from the lowest bit on. AWQ (gemm) packs eight neighbouring columns
// into a word, in the order 0, 2, 4, 6, 1, 3, 5, 7 of the nibbles. MXFP4 of
// gpt-oss has blocks of 32 values, two in a byte. These functions read only
// what they are given.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace haulway::arithmetic {

enum class Packing : uint8_t { kGptq, kAwq };

// Rows of stored bytes, `stride` bytes apart.
struct StoredRows {
  const std::byte* bytes = nullptr;
  uint64_t stride = 0;

  const std::byte* Row(uint64_t row) const { return bytes + row * stride; }
};

// Unpacks columns [first, first + count) of rows [row, row + rows) of the
// result. Element (i, j) becomes out[i * count + j]. `words`: row r of the
// result begins at byte 4 * r of the first stored row for GPTQ, 4 * (r / 8) for
// AWQ. `first` is a multiple of kTile (scaled_rows.h).
void UnpackColumns(Packing packing, int bits, StoredRows words, uint64_t row,
                   uint64_t rows, uint64_t first, uint64_t count, float* out);

// Unpacks the zeros of row `row` of the result: one in each stored row, plus
// `added`.
void UnpackZeros(Packing packing, int bits, StoredRows words, uint64_t groups,
                 uint64_t row, uint32_t added, float* out);

// Dequantizes MXFP4 blocks of outputs [first, first + count) for the inputs
// [input, input + inputs), which lie in one block of 32 in each stored row.
// Element (i, j) becomes out[i * count + j]. A scale of 255 is 2^128: its
// products are infinite but for the codes 0 and 0.5.
void DequantizeTransposed(StoredRows blocks, StoredRows scales, uint64_t input,
                          uint64_t inputs, uint64_t first, uint64_t count,
                          float* out);

}  // namespace haulway::arithmetic
