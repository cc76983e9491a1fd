// What the elements of a type are: floating-point numbers, complex ones, or
// numbers only with a scale that is kept beside them.

#pragma once

#include "haulway/dtype.h"

namespace haulway {

// Of a number for each item, so not of kF4E2M1X2.
inline bool IsFloating(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E4M3FNUZ:
    case DType::kF8E5M2FNUZ:
    case DType::kF8E8M0:
      return true;
    default:
      return false;
  }
}

inline bool IsComplex(DType dtype) {
  return dtype == DType::kC32 || dtype == DType::kC64 || dtype == DType::kC128;
}

inline bool IsQuantized(DType dtype) {
  switch (dtype) {
    case DType::kQI8:
    case DType::kQU8:
    case DType::kQI32:
    case DType::kQU4X2:
    case DType::kQU2X4:
      return true;
    default:
      return false;
  }
}

}  // namespace haulway
