// Elements as text.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "haulway/dtype.h"

namespace haulway::cli {

// One element. Types whose values have no usual form come as "0x" and bits.
std::string FormatElement(DType dtype, std::span<const std::byte> element);

// A dense tensor in nested brackets. Beyond `most` elements, dimensions longer
// than six show their first and last three.
std::string FormatTensor(DType dtype, std::span<const int64_t> shape,
                         std::span<const std::byte> bytes, uint64_t most);

// NumPy's description of the type, "<f4". Types that NumPy lacks are unsigned
// integers of their size.
std::string_view NpyDescription(DType dtype);
bool NumpyLacks(DType dtype);

}  // namespace haulway::cli
