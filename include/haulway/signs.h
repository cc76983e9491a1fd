// Elements whose signs differ from the stored ones.
//
// PyTorch conjugates and negates tensors lazily, and saves such tensors with
// two flags: `conjugate` and `negative` of TensorInfo. Read() and LoadTensors()
// return the stored elements; ResolveSigns() makes them the numbers that
// PyTorch shows.

#pragma once

#include <cstddef>
#include <span>

#include "haulway/dtype.h"
#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway {

struct Signs {
  bool conjugate = false;  // The signs of imaginary parts differ,
  bool negative = false;   // or those of all numbers.

  bool any() const { return conjugate || negative; }
};

inline Signs SignsOf(const TensorInfo& tensor) {
  return {tensor.conjugate, tensor.negative};
}

// Returns whether ResolveSigns() takes elements of this dtype: complex numbers,
// integers, and floating-point numbers of 16 bits or more.
HAULWAY_EXPORT bool HasSigns(DType dtype);

// Changes the signs of elements. They are dense, in this machine's byte order
// and of type `dtype`: the tensor's, or the one that they were cast to.
// Requires: HasSigns(dtype) unless no sign differs.
HAULWAY_EXPORT void ResolveSigns(Signs signs, DType dtype,
                                 std::span<std::byte> elements);

}  // namespace haulway
