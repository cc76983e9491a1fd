#include "arithmetic/scaled_rows.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "tensor/cast.h"
#include "tensor/small_floats.h"

namespace haulway::arithmetic {

namespace {

constexpr std::array<float, 16> kE2M1 = {0,    .5F,  1,  1.5F,  2,  3,  4,  6,
                                         -0.F, -.5F, -1, -1.5F, -2, -3, -4, -6};

// The numbers of two nibbles by byte, the low one first.
template <class ValueOf>
constexpr std::array<std::array<float, 2>, 256> PairTable(ValueOf value_of) {
  std::array<std::array<float, 2>, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) {
    table[byte] = {value_of(byte & 15), value_of(byte >> 4)};
  }
  return table;
}

constexpr auto kPairsOfE2M1 =
    PairTable([](unsigned nibble) { return kE2M1[nibble]; });
constexpr auto kPairsOfInt4 =
    PairTable([](unsigned nibble) { return static_cast<float>(nibble) - 8; });

// A number of E2M3: a sign, two bits of exponent, three of mantissa.
constexpr float OfE2M3(unsigned code) {
  const unsigned exponent = code >> 3 & 3;
  const auto mantissa = static_cast<float>(code & 7);
  const float magnitude =
      exponent == 0
          ? mantissa * .125F
          : (1 + mantissa * .125F) * static_cast<float>(1 << (exponent - 1));
  return (code & 0x20) == 0 ? magnitude : -magnitude;
}

uint8_t ByteAt(const std::byte* bytes, uint64_t i) {
  return static_cast<uint8_t>(bytes[i]);
}

void UnpackPairs(const std::array<std::array<float, 2>, 256>& table,
                 const std::byte* bytes, uint64_t count, float* out) {
  uint64_t i = 0;
  for (; i + 2 <= count; i += 2) {
    std::memcpy(out + i, table[ByteAt(bytes, i / 2)].data(), 2 * sizeof(float));
  }
  if (i < count) out[i] = table[ByteAt(bytes, i / 2)][0];
}

void UnpackE2M3(const std::byte* bytes, uint64_t count, float* out) {
  static constexpr auto kTable = [] {
    std::array<float, 64> table{};
    for (unsigned code = 0; code < 64; ++code) table[code] = OfE2M3(code);
    return table;
  }();
  for (uint64_t i = 0; i < count; ++i) {
    // The last codes of a row end with its last byte.
    const uint64_t bit = 6 * i;
    uint32_t code = ByteAt(bytes, bit / 8);
    if (bit % 8 > 2) code |= uint32_t{ByteAt(bytes, bit / 8 + 1)} << 8;
    out[i] = kTable[code >> (bit % 8) & 63];
  }
}

void UnpackWords(const std::byte* words, int bits, uint64_t first,
                 uint64_t count, float* out) {
  const auto in_word = static_cast<uint64_t>(32 / bits);
  const auto middle = static_cast<float>(1 << (bits - 1));
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t c = first + i;
    const uint64_t at =
        c / in_word * 32 + c % in_word * static_cast<uint64_t>(bits);
    out[i] =
        static_cast<float>(BitsAt(words, sizeof(uint32_t), at, bits)) - middle;
  }
}

void UnpackMapped(const std::byte* bytes, const float* map, uint64_t count,
                  float* out) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint8_t byte = ByteAt(bytes, i / 2);
    out[i] = map[i % 2 == 0 ? byte >> 4 : byte & 15];
  }
}

void RoundToBfloat(float* numbers, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t bits = BitsOf(numbers[i]);
    const uint32_t rounded = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000;
    const bool is_nan = (bits & 0x7FFFFFFF) > kFloatInfinity;
    numbers[i] = FloatOf(is_nan ? bits | 0x00400000 : rounded);
  }
}

// numbers = (numbers - zero) * scale.
void Multiply(float scale, float zero, uint64_t count, float* numbers) {
  for (uint64_t i = 0; i < count; ++i) numbers[i] = (numbers[i] - zero) * scale;
}
void Multiply(float scale, uint64_t count, float* numbers) {
  for (uint64_t i = 0; i < count; ++i) numbers[i] *= scale;
}

void MultiplyEach(const RowScales& scales, uint64_t first, uint64_t count,
                  float* numbers) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t group = scales.group_of[first + i];
    const float zero = scales.zeros.empty() ? 0 : scales.zeros[group];
    numbers[i] = (numbers[i] - zero) * scales.scales[group];
  }
}

void MultiplyGroups(const RowTerms& terms, const RowScales& scales,
                    uint64_t first, uint64_t count, float* numbers) {
  if (terms.group == 1 && scales.zeros.empty()) {
    const float* const by_column = scales.scales.data() + first;
    for (uint64_t i = 0; i < count; ++i) numbers[i] *= by_column[i];
    return;
  }
  for (uint64_t i = 0; i < count;) {
    const uint64_t group = (first + i) / terms.group;
    const uint64_t end = std::min(count, (group + 1) * terms.group - first);
    if (scales.zeros.empty()) {
      Multiply(scales.scales[group], end - i, numbers + i);
    } else {
      Multiply(scales.scales[group], scales.zeros[group], end - i, numbers + i);
    }
    i = end;
  }
}

}  // namespace

void WidenScales(DType dtype, const std::byte* scales, uint64_t count,
                 float* out) {
  if (dtype != DType::kU8) {
    CastElements(scales, dtype, reinterpret_cast<std::byte*>(out), DType::kF32,
                 count);
    return;
  }
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t code = ByteAt(scales, i);
    out[i] = FloatOf(code == 0 ? 0x00400000 : code << 23);
  }
}

uint32_t BitsAt(const std::byte* words, uint64_t stride, uint64_t at,
                int bits) {
  const uint64_t shift = at % 32;
  uint64_t both = 0;
  uint32_t word;
  std::memcpy(&word, words + at / 32 * stride, sizeof(word));
  both = word;
  if (shift + static_cast<uint64_t>(bits) > 32) {
    std::memcpy(&word, words + (at / 32 + 1) * stride, sizeof(word));
    both |= static_cast<uint64_t>(word) << 32;
  }
  return static_cast<uint32_t>(both >> shift) & ((1U << bits) - 1);
}

void Unpack(const RowTerms& terms, const std::byte* row, uint64_t first,
            uint64_t count, const float* map, float* out) {
  switch (terms.code) {
    case Numbers::kF8:
      return CastElements(row + first, terms.stored,
                          reinterpret_cast<std::byte*>(out), DType::kF32,
                          count);
    case Numbers::kI8:
      for (uint64_t i = 0; i < count; ++i) {
        out[i] = static_cast<float>(static_cast<int8_t>(row[first + i]));
      }
      return;
    case Numbers::kE2M1:
      return UnpackPairs(kPairsOfE2M1, row + first / 2, count, out);
    case Numbers::kE2M3:
      return UnpackE2M3(row + first / 4 * 3, count, out);
    case Numbers::kPacked:
      if (terms.bits == 4) {
        return UnpackPairs(kPairsOfInt4, row + first / 2, count, out);
      } else {
        const auto middle = static_cast<float>(1 << (terms.bits - 1));
        const auto bits = static_cast<uint64_t>(terms.bits);
        for (uint64_t i = 0; i < count; ++i) {
          out[i] = static_cast<float>(BitsAt(row, sizeof(uint32_t),
                                             (first + i) * bits, terms.bits)) -
                   middle;
        }
      }
      return;
    case Numbers::kPackedWords:
      return UnpackWords(row, terms.bits, first, count, out);
    case Numbers::kMapped:
      return UnpackMapped(row + first / 2, map, count, out);
  }
}

void RoundThrough(DType dtype, float* numbers, uint64_t count) {
  if (dtype == DType::kF32 || dtype == DType::kF64) return;
  if (dtype == DType::kBF16) return RoundToBfloat(numbers, count);
  std::array<std::byte, 1024> rounded;
  auto* const bytes = reinterpret_cast<std::byte*>(numbers);
  const uint64_t item = ItemBytes(dtype);
  const uint64_t most = rounded.size() / item;
  for (uint64_t i = 0; i < count; i += most) {
    const uint64_t some = std::min(most, count - i);
    CastElements(bytes + i * sizeof(float), DType::kF32, rounded.data(), dtype,
                 some);
    CastElements(rounded.data(), dtype, bytes + i * sizeof(float), DType::kF32,
                 some);
  }
}

void ScaleRow(const RowTerms& terms, const RowScales& scales, uint64_t first,
              uint64_t count, float* numbers, std::byte* out) {
  if (scales.group_of.empty()) {
    MultiplyGroups(terms, scales, first, count, numbers);
  } else {
    MultiplyEach(scales, first, count, numbers);
  }
  if (terms.after != 1) Multiply(terms.after, count, numbers);
  if (terms.through != terms.to) RoundThrough(terms.through, numbers, count);
  CastElements(reinterpret_cast<const std::byte*>(numbers), DType::kF32, out,
               terms.to, count);
}

}  // namespace haulway::arithmetic
