#include "values.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace haulway::cli {

namespace {

template <class T>
T Load(std::span<const std::byte> bytes) {
  T value;
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

// A small float format: a sign, `exponent` bits with `bias`, `mantissa` bits.
struct SmallFloat {
  int exponent;
  int mantissa;
  int bias;
  bool has_infinity;  // The highest exponent is infinity and NaN.
};
constexpr SmallFloat kHalf = {5, 10, 15, true};
constexpr SmallFloat kE4M3 = {4, 3, 7, false};
constexpr SmallFloat kE5M2 = {5, 2, 15, true};
constexpr SmallFloat kE4M3Fnuz = {4, 3, 8, false};
constexpr SmallFloat kE5M2Fnuz = {5, 2, 16, false};
constexpr SmallFloat kE2M1 = {2, 1, 1, false};

double Decode(const SmallFloat& form, uint32_t bits) {
  const uint32_t fraction = bits & ((1u << form.mantissa) - 1);
  const uint32_t highest = (1u << form.exponent) - 1;
  const uint32_t exponent = (bits >> form.mantissa) & highest;
  const bool negative = ((bits >> (form.mantissa + form.exponent)) & 1) != 0;
  double value;
  if (form.has_infinity && exponent == highest) {
    value = fraction == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(fraction, 1 - form.bias - form.mantissa);
  } else {
    value = std::ldexp(fraction + (1u << form.mantissa),
                       static_cast<int>(exponent) - form.bias - form.mantissa);
  }
  return negative ? -value : value;
}

double Half(std::span<const std::byte> bytes) {
  return Decode(kHalf, Load<uint16_t>(bytes));
}

std::string Real(double value) { return fmt::format("{:.6g}", value); }

std::string Complex(double real, double imaginary) {
  return fmt::format("{:.6g}{:+.6g}j", real, imaginary);
}

}  // namespace

std::optional<DType> ParseDType(std::string name) {
  if (const auto dtype = DTypeFromTorchName(name)) return dtype;
  std::ranges::transform(name, name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return DTypeFromName(name);
}

std::string FormatElement(DType dtype, std::span<const std::byte> element) {
  const auto small = [&](const SmallFloat& form, uint32_t nan, uint32_t also) {
    const auto bits = Load<uint8_t>(element);
    return bits == nan || bits == also ? std::string("nan")
                                       : Real(Decode(form, bits));
  };
  constexpr uint32_t kNone = 0x100;  // No byte has this value.
  switch (dtype) {
    case DType::kF64:
      return fmt::format("{:.9g}", Load<double>(element));
    case DType::kF32:
      return Real(Load<float>(element));
    case DType::kF16:
      return Real(Half(element));
    case DType::kBF16:
      return Real(std::bit_cast<float>(
          static_cast<uint32_t>(Load<uint16_t>(element)) << 16));
    case DType::kI64:
      return fmt::format("{}", Load<int64_t>(element));
    case DType::kI32:
    case DType::kQI32:
      return fmt::format("{}", Load<int32_t>(element));
    case DType::kI16:
      return fmt::format("{}", Load<int16_t>(element));
    case DType::kI8:
    case DType::kQI8:
      return fmt::format("{}", Load<int8_t>(element));
    case DType::kU64:
      return fmt::format("{}", Load<uint64_t>(element));
    case DType::kU32:
      return fmt::format("{}", Load<uint32_t>(element));
    case DType::kU16:
      return fmt::format("{}", Load<uint16_t>(element));
    case DType::kU8:
    case DType::kQU8:
      return fmt::format("{}", Load<uint8_t>(element));
    case DType::kBool:
      return Load<uint8_t>(element) != 0 ? "True" : "False";
    case DType::kC32:
      return Complex(Half(element), Half(element.subspan(2)));
    case DType::kC64:
      return Complex(Load<float>(element), Load<float>(element.subspan(4)));
    case DType::kC128:
      return Complex(Load<double>(element), Load<double>(element.subspan(8)));
    case DType::kF8E4M3:
      return small(kE4M3, 0x7F, 0xFF);
    case DType::kF8E5M2:
      return small(kE5M2, kNone, kNone);
    case DType::kF8E4M3FNUZ:
      return small(kE4M3Fnuz, 0x80, 0x80);
    case DType::kF8E5M2FNUZ:
      return small(kE5M2Fnuz, 0x80, 0x80);
    case DType::kF8E8M0: {
      const auto bits = Load<uint8_t>(element);
      return bits == 0xFF ? "nan" : Real(std::ldexp(1.0, bits - 127));
    }
    case DType::kF4E2M1X2: {
      // The low half is the first element.
      const auto bits = Load<uint8_t>(element);
      return fmt::format("({}, {})", Real(Decode(kE2M1, bits & 0xF)),
                         Real(Decode(kE2M1, bits >> 4)));
    }
    case DType::kF6E2M3X4:
    case DType::kF6E3M2X4:
      // No library defines the order of four values in three bytes.
      return fmt::format("0x{:02x}{:02x}{:02x}", Load<uint8_t>(element),
                         Load<uint8_t>(element.subspan(1)),
                         Load<uint8_t>(element.subspan(2)));
    case DType::kBits16:
      return fmt::format("{:#06x}", Load<uint16_t>(element));
    default:
      return fmt::format("{:#04x}", Load<uint8_t>(element));
  }
}

std::string FormatTensor(DType dtype, std::span<const int64_t> shape,
                         std::span<const std::byte> bytes, uint64_t most) {
  const uint64_t item = ItemBytes(dtype);
  if (shape.empty()) return FormatElement(dtype, bytes);
  constexpr int64_t kEdge = 3;
  const bool summarise = bytes.size() / item > most;
  std::string out;
  // Formats dimension `d`, whose elements begin at `at` and take `length`
  // bytes.
  const auto format = [&](const auto& self, size_t d, size_t at,
                          size_t length) -> void {
    if (d == shape.size()) {
      out += FormatElement(dtype, bytes.subspan(at, item));
      return;
    }
    out += '[';
    const size_t part = shape[d] == 0 ? 0 : length / shape[d];
    const bool last = d + 1 == shape.size();
    for (int64_t i = 0; i < shape[d]; ++i) {
      if (i > 0) {
        out += last ? ", " : ",";
        if (!last) {
          out.append(shape.size() - d - 1, '\n');
          out.append(d + 1, ' ');
        }
      }
      if (summarise && shape[d] > 2 * kEdge && i == kEdge) {
        out += "...";
        i = shape[d] - kEdge - 1;
        continue;
      }
      self(self, d + 1, at + static_cast<size_t>(i) * part, part);
    }
    out += ']';
  };
  format(format, 0, 0, bytes.size());
  return out;
}

}  // namespace haulway::cli
