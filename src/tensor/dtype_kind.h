// Shorthands for questions about DTypeInfo::kind.

#pragma once

#include "haulway/dtype.h"

namespace haulway {

inline bool IsFloating(DType dtype) {
  return Describe(dtype).kind == DTypeKind::kFloat;
}
inline bool IsComplex(DType dtype) {
  return Describe(dtype).kind == DTypeKind::kComplex;
}
inline bool IsQuantized(DType dtype) {
  return Describe(dtype).kind == DTypeKind::kQuantized;
}

}  // namespace haulway
