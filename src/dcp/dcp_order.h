// Chunks whose elements lie in another order than row-major: torch's writer
// keeps the strides of transposed and channels-last tensors.
//
// A codec: no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace haulway::dcp {

// Some elements of a chunk that form a rectangle of it, in dimensions from the
// outermost to the innermost.
struct ElementBox {
  uint64_t first = 0;             // Where its first element lies in the data.
  std::vector<uint64_t> sizes;    // In elements.
  std::vector<uint64_t> strides;  // In the chunk's data, in elements.
};

// Whether each element of the data is one of the tensor, so that the strides
// are only an order of dimensions. Sizes are at least 1.
bool IsReordered(std::span<const int64_t> sizes,
                 std::span<const int64_t> strides);

// The rectangles that hold the elements [begin, end) of a chunk, counted
// row-major, in that order. Requires: IsReordered(), begin < end, within the
// chunk.
std::vector<ElementBox> BoxesOf(std::span<const int64_t> sizes,
                                std::span<const int64_t> strides,
                                uint64_t begin, uint64_t end);

uint64_t CountOf(const ElementBox& box);

// Calls `each` with the runs of neighbours in the data that a box has: where
// they begin there, and how many they are. They come in the order of the data.
void ForEachRun(
    const ElementBox& box,
    const std::function<void(uint64_t first, uint64_t count)>& each);

// Puts a box's elements of `item` bytes, which `data` has in the order of
// ForEachRun(), row-major into `out`. Requires: both have the box's bytes.
void PlaceBox(const ElementBox& box, uint64_t item,
              std::span<const std::byte> data, std::span<std::byte> out);

}  // namespace haulway::dcp
