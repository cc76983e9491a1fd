#include "arithmetic/packed_columns.h"

#include <array>
#include <cstring>

#include "arithmetic/scaled_rows.h"
#include "tensor/small_floats.h"

namespace haulway::arithmetic {

namespace {

// The nibble of a word of AWQ that holds each of its eight columns.
constexpr std::array<uint32_t, 8> kAwqNibble = {0, 4, 1, 5, 2, 6, 3, 7};

uint32_t WordAt(const std::byte* words, uint64_t i) {
  uint32_t word;
  std::memcpy(&word, words + i * sizeof(word), sizeof(word));
  return word;
}

uint32_t AwqValue(const std::byte* words, uint64_t column) {
  return WordAt(words, column / 8) >> (4 * kAwqNibble[column % 8]) & 15;
}

void UnpackGptq(int bits, StoredRows words, uint64_t row, uint64_t rows,
                uint64_t first, uint64_t count, float* out) {
  const auto width = static_cast<uint64_t>(bits);
  if (32 % width != 0) {
    for (uint64_t i = 0; i < rows; ++i) {
      const std::byte* const column = words.bytes + 4 * (row + i);
      for (uint64_t j = 0; j < count; ++j) {
        out[i * count + j] = static_cast<float>(
            BitsAt(column, words.stride, (first + j) * width, bits));
      }
    }
    return;
  }
  const uint64_t in_word = 32 / width;
  const uint32_t mask = (uint32_t{1} << bits) - 1;
  for (uint64_t j = 0; j < count; j += in_word) {
    const std::byte* const stored = words.Row((first + j) / in_word);
    const uint64_t some = in_word < count - j ? in_word : count - j;
    for (uint64_t i = 0; i < rows; ++i) {
      const uint32_t word = WordAt(stored, row + i);
      float* const values = out + i * count + j;
      for (uint64_t k = 0; k < some; ++k) {
        values[k] = static_cast<float>(word >> (k * width) & mask);
      }
    }
  }
}

}  // namespace

void UnpackColumns(Packing packing, int bits, StoredRows words, uint64_t row,
                   uint64_t rows, uint64_t first, uint64_t count, float* out) {
  if (packing == Packing::kGptq) {
    return UnpackGptq(bits, words, row, rows, first, count, out);
  }
  for (uint64_t j = 0; j < count; ++j) {
    const std::byte* const stored = words.Row(first + j);
    for (uint64_t i = 0; i < rows; ++i) {
      out[i * count + j] = static_cast<float>(AwqValue(stored, row + i));
    }
  }
}

void UnpackZeros(Packing packing, int bits, StoredRows words, uint64_t groups,
                 uint64_t row, uint32_t added, float* out) {
  const uint64_t at = row * static_cast<uint64_t>(bits);
  for (uint64_t g = 0; g < groups; ++g) {
    const std::byte* const stored = words.Row(g);
    const uint32_t zero = packing == Packing::kAwq
                              ? AwqValue(stored, row)
                              : BitsAt(stored, sizeof(uint32_t), at, bits);
    out[g] = static_cast<float>(zero + added);
  }
}

void DequantizeTransposed(StoredRows blocks, StoredRows scales, uint64_t input,
                          uint64_t inputs, uint64_t first, uint64_t count,
                          float* out) {
  // The numbers of E2M1 doubled, and scales halved: 2^128 itself is infinite.
  constexpr std::array<float, 16> kTwice = {0,    1,  2,  3,  4,  6,  8,  12,
                                            -0.F, -1, -2, -3, -4, -6, -8, -12};
  const uint64_t group = input / 32;
  const uint64_t within = input % 32;
  for (uint64_t j = 0; j < count; ++j) {
    const std::byte* const block = blocks.Row(first + j) + 16 * group;
    const auto code = static_cast<uint32_t>(scales.Row(first + j)[group]);
    // 2^(code - 128); the two smallest are subnormal.
    const float scale =
        FloatOf(code < 2 ? uint32_t{0x00200000} << code : (code - 1) << 23);
    for (uint64_t i = 0; i < inputs; ++i) {
      const auto byte = static_cast<uint32_t>(block[(within + i) / 2]);
      const uint32_t nibble = (within + i) % 2 == 0 ? byte & 15 : byte >> 4;
      out[i * count + j] = kTwice[nibble] * scale;
    }
  }
}

}  // namespace haulway::arithmetic
