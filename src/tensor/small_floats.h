// Converts 8-bit and 16-bit floating-point formats, one number at a time, by
// bit operations.
//
// Conversions from float32 round to nearest, ties to even.

#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace haulway {

inline constexpr uint32_t kFloatInfinity = 0x7F800000;

constexpr uint32_t BitsOf(float value) {
  return std::bit_cast<uint32_t>(value);
}
constexpr float FloatOf(uint32_t bits) { return std::bit_cast<float>(bits); }

constexpr uint32_t HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t rest = half & 0x7FFF;
  if (rest > 0x7C00) return sign | 0x7FC00000 | (rest & 0x1FF) << 13;
  if (rest == 0x7C00) return sign | kFloatInfinity;
  if (rest >= 0x0400) return sign | ((rest << 13) + ((127 - 15) << 23));
  // Subnormal: a multiple of 2^-24, which float32 represents exactly.
  return sign | BitsOf(static_cast<float>(rest) * 0x1p-24F);
}

// Rounds to a format with `kMantissa` mantissa bits. `magnitude` is the float32
// without its sign. Requires: it is below the overflow of any such format.
template <int kMantissa, int kBias>
constexpr uint32_t RoundTo(uint32_t magnitude) {
  constexpr int kDropped = 23 - kMantissa;
  if (magnitude >= static_cast<uint32_t>(127 + 1 - kBias) << 23) {
    const uint32_t odd = magnitude >> kDropped & 1;
    const uint32_t half = (uint32_t{1} << (kDropped - 1)) - 1;
    return ((magnitude + half + odd) >> kDropped) -
           (static_cast<uint32_t>(127 - kBias) << kMantissa);
  }
  // Subnormal: the addition leaves the multiple of the smallest number,
  // rounded, in the lowest bits.
  constexpr uint32_t kShift =
      static_cast<uint32_t>(127 + 23 + 1 - kBias - kMantissa) << 23;
  return BitsOf(FloatOf(magnitude) + FloatOf(kShift)) - kShift;
}

constexpr uint16_t FloatToHalf(uint32_t bits) {
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t rest = 0x7C00;
  if (magnitude > kFloatInfinity) {
    rest = 0x7E00 | (magnitude >> 13 & 0x1FF);
  } else if (magnitude < BitsOf(65536.0F)) {
    rest = RoundTo<10, 15>(magnitude);  // May round up to infinity.
  }
  return static_cast<uint16_t>(sign | rest);
}

constexpr uint16_t FloatToBfloat(uint32_t bits, uint16_t nan) {
  if ((bits & 0x7FFFFFFF) > kFloatInfinity) return nan;
  return static_cast<uint16_t>((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// The differences between the 8-bit formats.
struct F8Format {
  int mantissa;
  int bias;
  uint8_t largest;   // Code of the largest finite number.
  uint8_t overflow;  // Code of larger numbers, without the sign.
  uint8_t nan;       // Code of a positive NaN.
  // The code of negative zero is the only NaN, which has no sign.
  bool no_negative_zero;
  bool has_infinity;
};
inline constexpr F8Format kE4M3 = {3, 7, 0x7E, 0x7E, 0x7F, false, false};
inline constexpr F8Format kE5M2 = {2, 15, 0x7B, 0x7C, 0x7F, false, true};
inline constexpr F8Format kE4M3FNUZ = {3, 8, 0x7F, 0x80, 0x80, true, false};
inline constexpr F8Format kE5M2FNUZ = {2, 16, 0x7F, 0x80, 0x80, true, false};

template <F8Format kFormat>
constexpr uint8_t FloatToF8(uint32_t bits) {
  uint32_t sign = bits >> 24 & 0x80;
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  uint32_t rest = kFormat.overflow;
  if (magnitude > kFloatInfinity) {
    rest = kFormat.nan;
    // Above the largest number of every format.
  } else if (magnitude < BitsOf(131072.0F)) {
    const uint32_t code = RoundTo<kFormat.mantissa, kFormat.bias>(magnitude);
    if (code <= kFormat.largest) rest = code;
  }
  if (kFormat.no_negative_zero && (rest == 0 || rest == 0x80)) sign = 0;
  return static_cast<uint8_t>(sign | rest);
}

template <F8Format kFormat>
constexpr uint32_t F8ToFloat(uint8_t code) {
  constexpr uint32_t kMantissaMask = (1U << kFormat.mantissa) - 1;
  constexpr int kDropped = 23 - kFormat.mantissa;
  if (kFormat.no_negative_zero && code == 0x80) return kFloatInfinity | 1;
  const uint32_t sign = static_cast<uint32_t>(code & 0x80) << 24;
  const uint32_t rest = code & 0x7F;
  if (rest > kFormat.largest) {
    const uint32_t fraction = (rest & kMantissaMask) << kDropped;
    if (!kFormat.has_infinity) return sign | 0x7FF00000;
    return sign | kFloatInfinity | (fraction == 0 ? 0 : 0x400000 | fraction);
  }
  if (rest <= kMantissaMask) {
    // Subnormal: a multiple of the smallest number.
    constexpr uint32_t kSmallest =
        static_cast<uint32_t>(127 + 1 - kFormat.bias - kFormat.mantissa) << 23;
    return sign | BitsOf(static_cast<float>(rest) * FloatOf(kSmallest));
  }
  return sign | ((rest << kDropped) +
                 (static_cast<uint32_t>(127 - kFormat.bias) << 23));
}

// Encodes a power of two without a sign; 0 becomes the smallest.
constexpr uint8_t FloatToE8M0(uint32_t bits) {
  const uint32_t exponent = bits >> 23 & 0xFF;
  if (exponent == 0xFF) return 0xFF;
  const uint32_t fraction = bits & 0x7FFFFF;
  // The midpoint is 2^22 above. For subnormals, the even neighbour is below, so
  // the midpoint rounds down.
  const bool up = exponent == 0 ? fraction > 0x400000 : fraction >= 0x400000;
  return static_cast<uint8_t>(exponent + (up ? 1 : 0));
}

constexpr uint32_t E8M0ToFloat(uint8_t code) {
  if (code == 0xFF) return kFloatInfinity | 1;
  return code == 0 ? 0x400000 : static_cast<uint32_t>(code) << 23;
}

// Returns the decoded values by code.
template <uint32_t (*kDecode)(uint8_t)>
constexpr std::array<uint32_t, 256> DecodeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t code = 0; code < 256; ++code) {
    table[code] = kDecode(static_cast<uint8_t>(code));
  }
  return table;
}

}  // namespace haulway
