// NumPy's slices, as text: "0:4,:", "-1", "::2,...".

#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway::cli {

// A view of a tensor: in elements of its storage, from `offset` on.
struct StridedView {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  uint64_t offset = 0;
};

// Applies a slice to a view. Steps must be positive. Fails with
// kInvalidArgument for what is no slice, or leaves the shape.
Result<StridedView> ApplySlice(StridedView view, std::string_view slice);

}  // namespace haulway::cli
