// Chunks whose elements are not in row-major order: torch's writer keeps the
// strides of transposed and channels-last tensors.
//
// A codec: no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace haulway::dcp {

// A rectangular part of a chunk. Dimensions are ordered from the outermost to
// the innermost.
struct ElementBox {
  // Offset of the first element in the data, in elements.
  uint64_t first = 0;
  std::vector<uint64_t> sizes;    // In elements.
  std::vector<uint64_t> strides;  // In the chunk's data, in elements.
};

// Returns whether the data consists of the tensor's elements only, each once,
// so that the strides are just an order of dimensions. Requires: sizes are at
// least 1.
bool IsReordered(std::span<const int64_t> sizes,
                 std::span<const int64_t> strides);

// Returns the boxes that cover elements [begin, end) of a chunk, counted
// row-major, in that order. Requires: IsReordered(), begin < end, within the
// chunk.
std::vector<ElementBox> BoxesOf(std::span<const int64_t> sizes,
                                std::span<const int64_t> strides,
                                uint64_t begin, uint64_t end);

uint64_t CountOf(const ElementBox& box);

// Calls `each` for each contiguous run of the box in the data, in the order of
// the data: its offset and length, in elements.
void ForEachRun(
    const ElementBox& box,
    const std::function<void(uint64_t first, uint64_t count)>& each);

// Copies a box's elements of `item` bytes, which `data` has in the order of
// ForEachRun(), to `out` in row-major order. Requires: both have the box's
// size.
void PlaceBox(const ElementBox& box, uint64_t item,
              std::span<const std::byte> data, std::span<std::byte> out);

}  // namespace haulway::dcp
