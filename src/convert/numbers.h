// Elements of any dtype as numbers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/dtype.h"
#include "tensor/dtype_kind.h"

namespace haulway::convert {

// Whether elements are numbers that ToNumbers() knows: every floating-point,
// integer and complex dtype, and booleans.
bool AreNumbers(DType dtype);

// Numbers per element: 2 of a complex one, its real part first.
inline size_t NumbersPerElement(DType dtype) {
  return IsComplex(dtype) ? 2 : 1;
}

// Elements of this machine's byte order, each as one or two numbers; 64-bit
// integers above 2^53 are rounded. Requires: AreNumbers(), and room for all of
// `bytes` in `out`.
void ToNumbers(std::span<const std::byte> bytes, DType dtype, double* out);

}  // namespace haulway::convert
