// Compares the kernels with twins: the same formulas, one element at a time.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "arithmetic/ggml_blocks.h"
#include "arithmetic/low_rank.h"
#include "arithmetic/packed_columns.h"
#include "arithmetic/scaled_rows.h"
#include "haulway/dtype.h"
#include "tensor/cast.h"
#include "tensor/small_floats.h"

namespace haulway::arithmetic {
namespace {

constexpr std::array<float, 16> kE2M1 = {0,    .5F,  1,  1.5F,  2,  3,  4,  6,
                                         -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};

std::vector<std::byte> RandomBytes(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(count);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

uint32_t Byte(std::span<const std::byte> bytes, uint64_t i) {
  return static_cast<uint32_t>(bytes[i]);
}

// Returns bits of a row one by one.
uint32_t TwinBits(std::span<const std::byte> row, uint64_t at, int count) {
  uint32_t value = 0;
  for (int i = 0; i < count; ++i) {
    const uint64_t bit = at + static_cast<uint64_t>(i);
    value |= (Byte(row, bit / 8) >> (bit % 8) & 1) << i;
  }
  return value;
}

float Twin(const RowTerms& terms, std::span<const std::byte> row, uint64_t c,
           const float* map) {
  const int middle = 1 << (terms.bits - 1);
  switch (terms.code) {
    case Numbers::kF8:
      return FloatOf(F8ToFloat<kE4M3>(static_cast<uint8_t>(row[c])));
    case Numbers::kI8:
      return static_cast<float>(static_cast<int8_t>(row[c]));
    case Numbers::kE2M1:
      return kE2M1[TwinBits(row, 4 * c, 4)];
    case Numbers::kE2M3: {
      const uint32_t code = TwinBits(row, 6 * c, 6);
      const int exponent = static_cast<int>(code >> 3 & 3);
      const auto mantissa = static_cast<float>(code & 7);
      const float magnitude = exponent == 0
                                  ? mantissa / 8
                                  : std::ldexp(1 + mantissa / 8, exponent - 1);
      return (code & 32) != 0 ? -magnitude : magnitude;
    }
    case Numbers::kPacked:
      return static_cast<float>(TwinBits(row, c * terms.bits, terms.bits)) -
             static_cast<float>(middle);
    case Numbers::kPackedWords: {
      const uint64_t in_word = 32 / terms.bits;
      const uint64_t at = c / in_word * 32 + c % in_word * terms.bits;
      return static_cast<float>(TwinBits(row, at, terms.bits)) -
             static_cast<float>(middle);
    }
    case Numbers::kMapped:
      return map[Byte(row, c / 2) >> (c % 2 == 0 ? 4 : 0) & 15];
  }
  return 0;
}

uint64_t RowBytes(const RowTerms& terms) {
  const uint64_t columns = terms.columns;
  switch (terms.code) {
    case Numbers::kF8:
    case Numbers::kI8:
      return columns;
    case Numbers::kE2M1:
    case Numbers::kMapped:
      return (columns + 1) / 2;
    case Numbers::kE2M3:
      return (columns * 6 + 7) / 8;
    case Numbers::kPacked:
      return (columns * terms.bits + 31) / 32 * 4;
    case Numbers::kPackedWords:
      return (columns + 32 / terms.bits - 1) / (32 / terms.bits) * 4;
  }
  return 0;
}

bool SameFloat(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : BitsOf(a) == BitsOf(b);
}

std::vector<RowTerms> AllTerms() {
  std::vector<RowTerms> all;
  for (const Numbers code :
       {Numbers::kF8, Numbers::kI8, Numbers::kE2M1, Numbers::kE2M3,
        Numbers::kPacked, Numbers::kPackedWords, Numbers::kMapped}) {
    const bool is_packed =
        code == Numbers::kPacked || code == Numbers::kPackedWords;
    for (int bits = is_packed ? 1 : 8; bits <= 8; ++bits) {
      for (const uint64_t columns : {1, 7, 250, 5000, 9001}) {
        RowTerms terms;
        terms.code = code;
        terms.bits = bits;
        terms.columns = columns;
        all.push_back(terms);
      }
    }
  }
  return all;
}

TEST(ScaledRows, UnpackIsItsTwin) {
  std::array<float, 16> map;
  for (int i = 0; i < 16; ++i) map[i] = static_cast<float>(i * i) - 40.5F;
  for (const RowTerms& terms : AllTerms()) {
    if (terms.code == Numbers::kPackedWords && terms.columns > kTile) continue;
    const auto row = RandomBytes(RowBytes(terms), 7);
    for (uint64_t first = 0; first < terms.columns; first += kTile) {
      const uint64_t count = std::min(kTile, terms.columns - first);
      std::vector<float> found(count);
      Unpack(terms, row.data(), first, count, map.data(), found.data());
      for (uint64_t i = 0; i < count; ++i) {
        ASSERT_TRUE(
            SameFloat(found[i], Twin(terms, row, first + i, map.data())))
            << static_cast<int>(terms.code) << " " << terms.bits << " "
            << first + i;
      }
    }
  }
}

TEST(ScaledRows, EveryStepIsRounded) {
  RowTerms terms;
  terms.columns = 300;
  terms.group = 64;
  terms.groups = 5;
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  std::vector<float> scales(5), zeros(5), numbers(300);
  for (float& scale : scales) scale = normal(random);
  for (float& zero : zeros) zero = std::round(10 * normal(random));
  for (float& number : numbers) number = std::round(100 * normal(random));
  std::vector<uint32_t> group_of(300);
  for (uint32_t& group : group_of) group = random() % 5;
  for (const DType through : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const DType to : {DType::kF32, DType::kBF16, DType::kF16}) {
      for (const bool is_ordered : {true, false}) {
        for (const float after : {1.F, .37F}) {
          terms.through = through;
          terms.to = to;
          terms.after = after;
          RowScales given = {scales, zeros, {}};
          if (!is_ordered) given.group_of = group_of;
          std::vector<float> work = numbers;
          std::vector<std::byte> out(300 * ItemBytes(to));
          ScaleRow(terms, given, 0, 300, work.data(), out.data());
          for (size_t c = 0; c < 300; ++c) {
            const size_t g = is_ordered ? c / 64 : group_of[c];
            // Volatile: nothing is fused.
            volatile float step = numbers[c] - zeros[g];
            step = step * scales[g];
            step = step * after;
            float one = step;
            RoundThrough(through, &one, 1);
            std::array<std::byte, 4> expected;
            CastElements(reinterpret_cast<const std::byte*>(&one), DType::kF32,
                         expected.data(), to, 1);
            ASSERT_EQ(
                0, std::memcmp(expected.data(), out.data() + c * ItemBytes(to),
                               ItemBytes(to)));
          }
        }
      }
    }
  }
}

TEST(ScaledRows, ExponentsAreExact) {
  std::vector<std::byte> codes(256);
  std::vector<float> found(256);
  for (int i = 0; i < 256; ++i) codes[i] = static_cast<std::byte>(i);
  WidenScales(DType::kU8, codes.data(), 256, found.data());
  for (int i = 0; i < 255; ++i) EXPECT_EQ(found[i], std::ldexp(1.F, i - 127));
  EXPECT_TRUE(std::isinf(found[255]));
}

TEST(PackedColumns, UnpackIsItsTwin) {
  constexpr uint64_t kRows = 24;
  for (const int bits : {2, 3, 4, 8}) {
    constexpr uint64_t kColumns = 96;
    const uint64_t words = kColumns * bits / 32;
    const auto stored = RandomBytes(words * kRows * 4, 11);
    std::vector<float> found(5 * kColumns);
    UnpackColumns(Packing::kGptq, bits, {stored.data(), kRows * 4}, 3, 5, 0,
                  kColumns, found.data());
    for (uint64_t i = 0; i < 5; ++i) {
      std::vector<std::byte> column(words * 4);
      for (uint64_t w = 0; w < words; ++w) {
        std::memcpy(column.data() + 4 * w,
                    stored.data() + (w * kRows + 3 + i) * 4, 4);
      }
      for (uint64_t c = 0; c < kColumns; ++c) {
        ASSERT_EQ(found[i * kColumns + c], TwinBits(column, c * bits, bits));
      }
    }
  }
}

TEST(PackedColumns, AwqHasItsOrder) {
  // Nibble k of a word belongs to this column of eight.
  constexpr std::array<uint64_t, 8> kColumnOf = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto stored = RandomBytes(10 * 16 * 4, 12);
  std::vector<float> found(16 * 10);
  UnpackColumns(Packing::kAwq, 4, {stored.data(), 16 * 4}, 8, 16, 0, 10,
                found.data());
  for (uint64_t c = 0; c < 10; ++c) {
    for (uint64_t word = 1; word < 3; ++word) {
      for (uint64_t k = 0; k < 8; ++k) {
        const uint32_t nibble = TwinBits(
            std::span(stored).subspan((c * 16 + word) * 4, 4), 4 * k, 4);
        const uint64_t row = word * 8 + kColumnOf[k] - 8;
        ASSERT_EQ(found[row * 10 + c], nibble);
      }
    }
  }
}

TEST(PackedColumns, TransposedIsItsTwin) {
  constexpr uint64_t kGroups = 3;
  const auto blocks = RandomBytes(20 * kGroups * 16, 13);
  auto scales = RandomBytes(20 * kGroups, 14);
  scales[0] = std::byte{0};
  scales[1] = std::byte{1};
  scales[2] = std::byte{255};
  for (uint64_t input = 0; input < 96; input += 8) {
    std::vector<float> found(8 * 20);
    DequantizeTransposed({blocks.data(), kGroups * 16},
                         {scales.data(), kGroups}, input, 8, 0, 20,
                         found.data());
    for (uint64_t i = 0; i < 8; ++i) {
      for (uint64_t o = 0; o < 20; ++o) {
        const uint64_t g = (input + i) / 32;
        const uint32_t nibble =
            TwinBits(std::span(blocks).subspan((o * kGroups + g) * 16, 16),
                     (input + i) % 32 * 4, 4);
        const float expected =
            std::ldexp(kE2M1[nibble],
                       static_cast<int>(Byte(scales, o * kGroups + g)) - 127);
        ASSERT_TRUE(SameFloat(found[i * 20 + o], expected));
      }
    }
  }
}

TEST(GgmlBlocks, BlocksAreIndependent) {
  int types = 0;
  for (const DTypeInfo& info : AllDTypes()) {
    const BlocksFunction blocks = BlocksFunctionOf(info.dtype);
    if (blocks == nullptr || info.block_elements == 0) continue;
    ++types;
    const auto stored = RandomBytes(5 * info.block_bytes, 15);
    std::vector<float> all(5 * info.block_elements);
    blocks(stored.data(), 5, all.data());
    std::vector<float> one(info.block_elements);
    blocks(stored.data() + 3 * info.block_bytes, 1, one.data());
    EXPECT_EQ(0, std::memcmp(one.data(), all.data() + 3 * info.block_elements,
                             one.size() * sizeof(float)))
        << info.name;
    // Blocks of zeros have a scale of 0, but for exponents.
    const std::vector<std::byte> zeros(info.block_bytes);
    blocks(zeros.data(), 1, one.data());
    for (const float number : one) EXPECT_EQ(number, 0) << info.name;
  }
  EXPECT_EQ(types, 23);
}

TEST(LowRank, SumsInOrderWhateverIsComputedTogether) {
  constexpr uint64_t kRows = 15;
  constexpr uint64_t kColumns = 70;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (const uint64_t rank : {1, 3, 64}) {
    std::vector<float> left(kRows * rank);
    for (float& number : left) number = normal(random);
    Panels right(rank, kColumns);
    for (uint64_t k = 0; k < rank; ++k) {
      for (uint64_t j = 0; j < kColumns; ++j) right.At(k, j) = normal(random);
    }
    constexpr uint64_t kStride = 3 * kPanelColumns;
    std::vector<float> whole(kRows * kStride);
    Multiply(left.data(), kRows, right, 0, 3, whole.data(), kStride);
    for (uint64_t i = 0; i < kRows; ++i) {
      for (uint64_t j = 0; j < kColumns; ++j) {
        float sum = 0;
        for (uint64_t k = 0; k < rank; ++k) {
          const volatile float product = left[i * rank + k] * right.At(k, j);
          sum = sum + product;
        }
        ASSERT_EQ(whole[i * kStride + j], sum) << i << " " << j;
      }
      for (uint64_t j = kColumns; j < kStride; ++j) {
        ASSERT_EQ(whole[i * kStride + j], 0);
      }
      std::vector<float> part(2 * kPanelColumns);
      Multiply(left.data() + i * rank, 1, right, 1, 2, part.data(), kStride);
      ASSERT_TRUE(std::equal(
          part.begin(), part.end(),
          whole.begin() + static_cast<ptrdiff_t>(i * kStride + kPanelColumns)));
    }
  }
}

}  // namespace
}  // namespace haulway::arithmetic
