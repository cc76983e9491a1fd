// Arithmetic that detects overflow, for numbers that come from files.

#pragma once

#include <cstdint>

namespace haulway {

// These functions store the result and return true. On overflow they return
// false and leave `result` unspecified.
[[nodiscard]] inline bool CheckedAdd(uint64_t a, uint64_t b, uint64_t* result) {
  return !__builtin_add_overflow(a, b, result);
}
[[nodiscard]] inline bool CheckedMultiply(uint64_t a, uint64_t b,
                                          uint64_t* result) {
  return !__builtin_mul_overflow(a, b, result);
}

// Returns whether [offset, offset + length) lies within [0, size).
[[nodiscard]] inline bool RangeFits(uint64_t offset, uint64_t length,
                                    uint64_t size) {
  return offset <= size && length <= size - offset;
}

// Rounds up to a multiple. Returns false on overflow. Requires: multiple > 0.
[[nodiscard]] inline bool CheckedRoundUp(uint64_t value, uint64_t multiple,
                                         uint64_t* result) {
  const uint64_t rest = value % multiple;
  if (rest == 0) {
    *result = value;
    return true;
  }
  return CheckedAdd(value, multiple - rest, result);
}

}  // namespace haulway
