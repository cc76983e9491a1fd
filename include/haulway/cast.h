// Casting elements from one type to another.

#pragma once

#include "haulway/dtype.h"
#include "haulway/export.h"

namespace haulway {

// Whether elements can be cast: any floating point type to any other, rounded
// to nearest even as PyTorch does; booleans, integers and complex numbers to
// types that hold every value of theirs, complex numbers to narrower ones too.
HAULWAY_EXPORT bool CanCast(DType from, DType to);

}  // namespace haulway
