// Casts elements from one dtype to another, as PyTorch does.

#pragma once

#include <cstddef>
#include <cstdint>

#include "haulway/dtype.h"

namespace haulway {

// Casts `count` elements. Neither side needs to be aligned. Requires:
// CanCast(from, to); `in` and `out` do not overlap.
//
// Floating-point casts go through float32, so a float64 may be rounded twice
// when it is cast to a smaller type, as in PyTorch on a CPU. NaNs get the bits
// that PyTorch gives them on a processor with vector instructions.
void CastElements(const std::byte* in, DType from, std::byte* out, DType to,
                  uint64_t count);

}  // namespace haulway
