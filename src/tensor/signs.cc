#include "haulway/signs.h"

#include <bit>
#include <cassert>
#include <cstdint>

#include "tensor/dtype_kind.h"

namespace haulway {

namespace {

bool IsInteger(DType dtype) {
  const DTypeKind kind = Describe(dtype).kind;
  return (kind == DTypeKind::kInt || kind == DTypeKind::kUInt) &&
         Describe(dtype).in_numpy == InNumpy::kItself;
}

// Flips the sign of a floating-point number of `part_bytes` in every `step`
// bytes, starting at byte `first`.
void FlipSigns(std::span<std::byte> bytes, uint64_t first, uint64_t step,
               uint64_t part_bytes) {
  const uint64_t top =
      std::endian::native == std::endian::little ? part_bytes - 1 : 0;
  for (uint64_t at = first + top; at < bytes.size(); at += step) {
    bytes[at] ^= std::byte{0x80};
  }
}

// Negates integers of `item` bytes, modulo their range as PyTorch does.
void NegateIntegers(std::span<std::byte> bytes, uint64_t item) {
  for (; bytes.size() >= item; bytes = bytes.subspan(item)) {
    unsigned carry = 1;
    for (uint64_t i = 0; i < item; ++i) {
      const uint64_t at =
          std::endian::native == std::endian::little ? i : item - 1 - i;
      const unsigned sum = std::to_integer<unsigned>(~bytes[at]) + carry;
      bytes[at] = static_cast<std::byte>(sum & 0xFF);
      carry = sum >> 8;
    }
  }
}

}  // namespace

bool HasSigns(DType dtype) {
  return IsComplex(dtype) || IsInteger(dtype) ||
         (IsFloating(dtype) && ItemBytes(dtype) > 1);
}

void ResolveSigns(Signs signs, DType dtype, std::span<std::byte> elements) {
  if (!signs.any()) return;
  assert(HasSigns(dtype));
  const uint64_t item = ItemBytes(dtype);
  if (IsComplex(dtype)) {
    const uint64_t half = item / 2;
    if (signs.negative) FlipSigns(elements, 0, item, half);
    if (signs.negative != signs.conjugate) {
      FlipSigns(elements, half, item, half);
    }
  } else if (signs.negative && IsInteger(dtype)) {
    NegateIntegers(elements, item);
  } else if (signs.negative) {
    FlipSigns(elements, 0, item, item);
  }
}

}  // namespace haulway
