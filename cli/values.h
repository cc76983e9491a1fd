// Formats elements as text.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/dtype.h"

namespace haulway::cli {

// Parses a dtype: "bf16", "BF16" and "bfloat16" are the same.
std::optional<DType> ParseDType(std::string name);

// Formats an element. Types without a usual notation are shown as "0x" and
// bits.
std::string FormatElement(DType dtype, std::span<const std::byte> element);

// Formats a dense tensor in nested brackets. Above `most` elements, dimensions
// of more than six show their first and last three.
std::string FormatTensor(DType dtype, std::span<const int64_t> shape,
                         std::span<const std::byte> bytes, uint64_t most);

}  // namespace haulway::cli
