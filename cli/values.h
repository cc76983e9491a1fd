// Elements as text.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/dtype.h"

namespace haulway::cli {

// "bf16", "BF16" and "bfloat16" are one.
std::optional<DType> ParseDType(std::string name);

// One element. Types whose values have no usual form come as "0x" and bits.
std::string FormatElement(DType dtype, std::span<const std::byte> element);

// A dense tensor in nested brackets. Beyond `most` elements, dimensions longer
// than six show their first and last three.
std::string FormatTensor(DType dtype, std::span<const int64_t> shape,
                         std::span<const std::byte> bytes, uint64_t most);

}  // namespace haulway::cli
