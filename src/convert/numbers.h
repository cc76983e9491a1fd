// Converts elements of any dtype to numbers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/dtype.h"
#include "haulway/options.h"
#include "tensor/dtype_kind.h"

namespace haulway::convert {

// Bytes of tensors that a thread takes at once, and elements of these that are
// converted at once: the numbers fit the L1 cache.
inline constexpr uint64_t kPieceBytes = kMiB;
inline constexpr size_t kNumbersAtOnce = 512;

// Returns whether ToNumbers() supports the dtype: every floating-point, integer
// and complex dtype, and booleans.
bool AreNumbers(DType dtype);

// Numbers per element: 2 for complex dtypes, the real part first.
inline size_t NumbersPerElement(DType dtype) {
  return IsComplex(dtype) ? 2 : 1;
}

// Converts elements in this machine's byte order to one or two numbers each.
// Rounds 64-bit integers above 2^53. Requires: AreNumbers(), and room for all
// of `bytes` in `out`.
void ToNumbers(std::span<const std::byte> bytes, DType dtype, double* out);

}  // namespace haulway::convert
