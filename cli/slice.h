// NumPy's slices, as text: "0:4,:", "-1", "::-2,...".

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/load_tensors.h"
#include "haulway/status.h"

namespace haulway::cli {

// What a slice keeps of a tensor.
struct Slice {
  std::vector<DimSlice> dims;  // One for each dimension of the tensor.
  std::vector<int64_t> shape;  // Without those that were given as a number.
};

// Understands a slice of a tensor of that shape; steps may be negative. Fails
// with kInvalidArgument for what is no slice, or leaves the shape.
Result<Slice> ParseSlice(std::string_view text, std::span<const int64_t> shape);

}  // namespace haulway::cli
