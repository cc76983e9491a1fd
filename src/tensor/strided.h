// Handles tensors whose elements are not contiguous.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace haulway {

// Returns the product of the sizes, or nullopt if it overflows; 1 for no
// dimensions. Requires: no size is negative.
std::optional<uint64_t> CountElements(std::span<const int64_t> shape);

// Returns the index after the last element, relative to the first one; 0 for a
// tensor without elements; nullopt if it overflows. Requires: no size and no
// stride is negative.
std::optional<uint64_t> ElementExtent(std::span<const int64_t> shape,
                                      std::span<const int64_t> strides);

// Returns whether the elements are dense, in row-major order.
bool IsContiguous(std::span<const int64_t> shape,
                  std::span<const int64_t> strides);

// Copies the elements in row-major order to `out`. `first` is the first
// element. Requires: ElementExtent() elements are readable from it, and
// out.size() is the number of elements times `item_bytes`.
void GatherElements(const std::byte* first, std::span<const int64_t> shape,
                    std::span<const int64_t> strides, uint64_t item_bytes,
                    std::span<std::byte> out);

}  // namespace haulway
