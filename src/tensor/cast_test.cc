#include "tensor/cast.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "tensor/small_floats.h"

namespace haulway {
namespace {

constexpr DType kFloats[] = {
    DType::kF64,        DType::kF32,        DType::kF16,
    DType::kBF16,       DType::kF8E4M3,     DType::kF8E5M2,
    DType::kF8E4M3FNUZ, DType::kF8E5M2FNUZ, DType::kF8E8M0};

template <class To, class From>
std::vector<To> Cast(const std::vector<From>& in, DType from, DType to) {
  const size_t count = in.size() * sizeof(From) / ItemBytes(from);
  std::vector<To> out(count * ItemBytes(to) / sizeof(To));
  CastElements(reinterpret_cast<const std::byte*>(in.data()), from,
               reinterpret_cast<std::byte*>(out.data()), to, count);
  return out;
}

template <class T>
std::vector<T> AllCodes() {
  std::vector<T> codes(size_t{1} << (8 * sizeof(T)));
  for (size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<T>(i);
  return codes;
}

// Returns the value of a code by the format's definition, from its fields.
double Defined(uint32_t code, int exponent_bits, int mantissa_bits, int bias) {
  const uint32_t mantissa = code & ((1U << mantissa_bits) - 1);
  const int exponent =
      static_cast<int>(code >> mantissa_bits & ((1U << exponent_bits) - 1));
  const double fraction = std::ldexp(mantissa, -mantissa_bits);
  const double value = exponent == 0
                           ? std::ldexp(fraction, 1 - bias)
                           : std::ldexp(1 + fraction, exponent - bias);
  return (code >> (exponent_bits + mantissa_bits) & 1) != 0 ? -value : value;
}

TEST(Cast, DecodesEveryFiniteCode) {
  struct Format {
    DType dtype;
    int exponent_bits, mantissa_bits, bias;
  };
  for (const Format& format :
       {Format{DType::kF8E4M3, 4, 3, 7}, Format{DType::kF8E5M2, 5, 2, 15},
        Format{DType::kF8E4M3FNUZ, 4, 3, 8},
        Format{DType::kF8E5M2FNUZ, 5, 2, 16}}) {
    const auto values =
        Cast<double>(AllCodes<uint8_t>(), format.dtype, DType::kF64);
    int finite = 0;
    for (uint32_t code = 0; code < 256; ++code) {
      if (!std::isfinite(values[code])) continue;
      ++finite;
      EXPECT_EQ(values[code], Defined(code, format.exponent_bits,
                                      format.mantissa_bits, format.bias))
          << Name(format.dtype) << " " << code;
    }
    EXPECT_GE(finite, 248);
  }
  const auto halves =
      Cast<double>(AllCodes<uint16_t>(), DType::kF16, DType::kF64);
  const auto bfloats =
      Cast<double>(AllCodes<uint16_t>(), DType::kBF16, DType::kF64);
  for (uint32_t code = 0; code < 65536; ++code) {
    if (std::isfinite(halves[code])) {
      EXPECT_EQ(halves[code], Defined(code, 5, 10, 15)) << code;
    }
    if (std::isfinite(bfloats[code])) {
      EXPECT_EQ(bfloats[code], Defined(code, 8, 7, 127)) << code;
    }
  }
}

// Casting to a wider type and back returns the same bits, except for NaNs.
TEST(Cast, ThereAndBackIsTheSame) {
  for (const DType dtype : kFloats) {
    const auto expect = [&](const auto& codes) {
      const auto floats = Cast<float>(codes, dtype, DType::kF32);
      const auto back =
          Cast<typename std::decay_t<decltype(codes)>::value_type>(
              floats, DType::kF32, dtype);
      for (size_t i = 0; i < codes.size(); ++i) {
        if (!std::isnan(floats[i])) {
          EXPECT_EQ(back[i], codes[i]) << Name(dtype) << " " << i;
        }
      }
    };
    if (ItemBytes(dtype) == 1) expect(AllCodes<uint8_t>());
    if (ItemBytes(dtype) == 2) expect(AllCodes<uint16_t>());
  }
}

// Chooses the nearer of two neighbours, and the even one if both are as near.
TEST(Cast, RoundsToNearestEven) {
  for (const DType dtype : kFloats) {
    const uint64_t item = ItemBytes(dtype);
    if (item > 2 || dtype == DType::kF8E8M0) continue;
    const uint32_t codes = item == 1 ? 127 : 32767;
    for (uint32_t code = 0; code < codes; ++code) {
      const auto value = [&](uint32_t of) {
        const auto narrow = static_cast<uint16_t>(of);
        float wide = 0;
        CastElements(reinterpret_cast<const std::byte*>(&narrow), dtype,
                     reinterpret_cast<std::byte*>(&wide), DType::kF32, 1);
        return wide;
      };
      const float low = value(code);
      const float high = value(code + 1);
      if (!std::isfinite(low) || !std::isfinite(high)) continue;
      // Exact, because each has few bits.
      const float middle = low + (high - low) / 2;
      const std::vector<float> between = {std::nextafter(middle, low), middle,
                                          std::nextafter(middle, high)};
      const auto expect = [&](const auto& found) {
        EXPECT_EQ(found[0], code) << Name(dtype);
        EXPECT_EQ(found[1], code + (code & 1)) << Name(dtype);
        EXPECT_EQ(found[2], code + 1) << Name(dtype);
      };
      if (item == 1) {
        expect(Cast<uint8_t>(between, DType::kF32, dtype));
      } else {
        expect(Cast<uint16_t>(between, DType::kF32, dtype));
      }
    }
  }
}

TEST(Cast, LargeNumbersBecomeWhatEachFormatHas) {
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<float> large = {1e30F, infinity, -1e30F, -infinity};
  using Codes = std::vector<uint8_t>;
  EXPECT_EQ(Cast<uint8_t>(large, DType::kF32, DType::kF8E4M3),
            (Codes{0x7E, 0x7E, 0xFE, 0xFE}));
  EXPECT_EQ(Cast<uint8_t>(large, DType::kF32, DType::kF8E5M2),
            (Codes{0x7C, 0x7C, 0xFC, 0xFC}));
  EXPECT_EQ(Cast<uint8_t>(large, DType::kF32, DType::kF8E4M3FNUZ),
            (Codes{0x80, 0x80, 0x80, 0x80}));
  EXPECT_EQ(Cast<uint8_t>(large, DType::kF32, DType::kF8E5M2FNUZ),
            (Codes{0x80, 0x80, 0x80, 0x80}));
  EXPECT_EQ(Cast<uint8_t>(large, DType::kF32, DType::kF8E8M0),
            (Codes{0xE3, 0xFF, 0xE3, 0xFF}));
  EXPECT_EQ(Cast<uint16_t>(large, DType::kF32, DType::kF16),
            (std::vector<uint16_t>{0x7C00, 0x7C00, 0xFC00, 0xFC00}));
  EXPECT_EQ(Cast<uint16_t>(std::vector<float>{65519.0F, 65520.0F}, DType::kF32,
                           DType::kF16),
            (std::vector<uint16_t>{0x7BFF, 0x7C00}));
}

// The vector code agrees with the code for single numbers.
TEST(Cast, VectorsAgreeWithSingleNumbers) {
  std::vector<uint32_t> bits;
  for (uint32_t i = 0; i < 1 << 20; ++i) bits.push_back(i * 4099 + 7);
  const auto halves = Cast<uint16_t>(bits, DType::kF32, DType::kF16);
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(halves[i], FloatToHalf(bits[i])) << bits[i];
  }
  const auto floats =
      Cast<uint32_t>(AllCodes<uint16_t>(), DType::kF16, DType::kF32);
  for (size_t i = 0; i < floats.size(); ++i) {
    ASSERT_EQ(floats[i], HalfToFloat(static_cast<uint16_t>(i))) << i;
  }
  // Each NaN has the bits that PyTorch gives it, for float32 and other sources.
  const auto bfloats = Cast<uint16_t>(bits, DType::kF32, DType::kBF16);
  for (size_t i = 0; i < bits.size(); ++i) {
    ASSERT_EQ(bfloats[i], FloatToBfloat(bits[i], 0xFFFF)) << bits[i];
  }
  const auto of_halves =
      Cast<uint16_t>(AllCodes<uint16_t>(), DType::kF16, DType::kBF16);
  for (size_t i = 0; i < of_halves.size(); ++i) {
    ASSERT_EQ(of_halves[i], FloatToBfloat(floats[i], 0x7FC0)) << i;
  }
  const auto e4m3 =
      Cast<uint32_t>(AllCodes<uint8_t>(), DType::kF8E4M3, DType::kF32);
  const auto e5m2 =
      Cast<uint32_t>(AllCodes<uint8_t>(), DType::kF8E5M2, DType::kF32);
  for (size_t i = 0; i < 256; ++i) {
    ASSERT_EQ(e4m3[i], F8ToFloat<kE4M3>(static_cast<uint8_t>(i))) << i;
    ASSERT_EQ(e5m2[i], F8ToFloat<kE5M2>(static_cast<uint8_t>(i))) << i;
  }
}

TEST(Cast, EveryPairAndCountIsAsTheFirstElements) {
  // Bytes that are not a NaN in any format, and fit every integer.
  for (int f = 0; f < kDTypeCount; ++f) {
    for (int t = 0; t < kDTypeCount; ++t) {
      const auto from = static_cast<DType>(f);
      const auto to = static_cast<DType>(t);
      if (!CanCast(from, to)) continue;
      const uint64_t in_item = ItemBytes(from);
      const uint64_t out_item = ItemBytes(to);
      constexpr uint64_t kMost = 1030;
      std::vector<std::byte> in(kMost * in_item + 1);
      for (size_t i = 0; i < in.size(); ++i) {
        in[i] = static_cast<std::byte>(i * 7 & 0x3F);
      }
      std::vector<std::byte> all(kMost * out_item + 1);
      CastElements(in.data() + 1, from, all.data() + 1, to, kMost);
      for (const uint64_t count : {1, 7, 8, 9, 511, 512, 513}) {
        std::vector<std::byte> some(count * out_item);
        CastElements(in.data() + 1, from, some.data(), to, count);
        EXPECT_EQ(std::memcmp(some.data(), all.data() + 1, some.size()), 0)
            << Name(from) << " to " << Name(to);
      }
    }
  }
}

TEST(Cast, IntegersGoWhereEveryValueFits) {
  EXPECT_TRUE(CanCast(DType::kI32, DType::kI64));
  EXPECT_TRUE(CanCast(DType::kU8, DType::kI16));
  EXPECT_TRUE(CanCast(DType::kU16, DType::kF32));
  EXPECT_TRUE(CanCast(DType::kI32, DType::kF64));
  EXPECT_TRUE(CanCast(DType::kBool, DType::kBF16));
  EXPECT_TRUE(CanCast(DType::kQI8, DType::kQI8));
  EXPECT_FALSE(CanCast(DType::kI32, DType::kF32));
  EXPECT_FALSE(CanCast(DType::kI8, DType::kU8));
  EXPECT_FALSE(CanCast(DType::kU8, DType::kI8));
  EXPECT_FALSE(CanCast(DType::kI64, DType::kI32));
  EXPECT_FALSE(CanCast(DType::kF32, DType::kI32));
  EXPECT_FALSE(CanCast(DType::kU8, DType::kBool));
  EXPECT_FALSE(CanCast(DType::kC64, DType::kF32));
  EXPECT_FALSE(CanCast(DType::kF32, DType::kC64));
  EXPECT_FALSE(CanCast(DType::kQI8, DType::kF32));
  EXPECT_FALSE(CanCast(DType::kU8, DType::kF8E5M2));

  const std::vector<int8_t> small = {-128, -1, 0, 1, 127};
  EXPECT_EQ(Cast<int64_t>(small, DType::kI8, DType::kI64),
            (std::vector<int64_t>{-128, -1, 0, 1, 127}));
  EXPECT_EQ(Cast<float>(small, DType::kI8, DType::kF32),
            (std::vector<float>{-128, -1, 0, 1, 127}));
  const std::vector<uint8_t> flags = {0, 1, 2};
  EXPECT_EQ(Cast<int32_t>(flags, DType::kBool, DType::kI32),
            (std::vector<int32_t>{0, 1, 1}));
  const std::vector<int32_t> wide = {INT32_MIN, INT32_MAX};
  EXPECT_EQ(Cast<double>(wide, DType::kI32, DType::kF64),
            (std::vector<double>{INT32_MIN, INT32_MAX}));
}

TEST(Cast, ComplexNumbersAreTwoNumbers) {
  const std::vector<double> two = {1.5, -2.25, 1e-3, 4};
  EXPECT_EQ(Cast<float>(two, DType::kC128, DType::kC64),
            (std::vector<float>{1.5F, -2.25F, 1e-3F, 4}));
  EXPECT_EQ(Cast<double>(Cast<float>(two, DType::kC128, DType::kC64),
                         DType::kC64, DType::kC128),
            (std::vector<double>{1.5, -2.25, 1e-3F, 4}));
}

}  // namespace
}  // namespace haulway
