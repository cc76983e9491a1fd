// Casting elements from one type to another, as PyTorch does.

#pragma once

#include <cstddef>
#include <cstdint>

#include "haulway/dtype.h"

namespace haulway {

// Casts `count` elements, of which neither side needs to be aligned. Requires:
// CanCast(from, to); `in` and `out` do not overlap.
//
// Everything but float64 to float32 and back goes by way of float32, so that
// from float64 a number may be rounded twice, as in PyTorch on a CPU. What a
// NaN becomes is PyTorch's choice too, on a processor with vectors.
void CastElements(const std::byte* in, DType from, std::byte* out, DType to,
                  uint64_t count);

}  // namespace haulway
