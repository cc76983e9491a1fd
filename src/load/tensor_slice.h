// Slices of tensors: which bytes of a storage a slice needs, and where they go
// in dense, row-major memory. Pure; no I/O.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "haulway/dtype.h"
#include "haulway/index.h"
#include "haulway/load.h"
#include "haulway/status.h"

namespace haulway {

// One loop over elements. Strides in the storage and in the output count
// elements.
struct GridDim {
  uint64_t count = 1;
  uint64_t stride = 0;
  int64_t out_stride = 0;
};

// An ElementGrid is a set of elements of a storage and their places in the
// output. Loops are sorted by descending stride, but loops of stride 0 come
// first. Each loop has at least two steps, and loops that can be merged are
// merged.
struct ElementGrid {
  uint64_t item_bytes = 1;
  // Number of elements; the other fields are unspecified if it is 0.
  uint64_t count = 0;
  uint64_t first = 0;      // Lowest element, counted from the storage's start.
  uint64_t out_first = 0;  // Place of `first` in the output.
  std::vector<GridDim> dims;

  // Returns the number of elements from the lowest to the highest, inclusive.
  uint64_t Extent() const { return ExtentFrom(0); }
  // Returns the same for loops `d` and up only.
  uint64_t ExtentFrom(size_t d) const;
};

// Returns the elements of a slice of the tensor. `slice` is empty or has one
// entry per dimension. Fails with kInvalidArgument if the slice leaves the
// shape.
Result<ElementGrid> MakeGrid(const TensorInfo& tensor,
                             std::span<const DimSlice> slice);

// Returns a grid of `count` adjacent elements, from element 0.
ElementGrid DenseGrid(uint64_t count, uint64_t item_bytes);

// A range of elements of a storage. `out` is set if the range is dense and goes
// to a contiguous range of the output.
struct ElementRun {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::optional<uint64_t> out;
};

// How ForEachRun() cuts a grid into runs.
struct RunShape {
  size_t outer = 0;     // Number of outer loops that iterate over runs.
  uint64_t length = 0;  // Elements per run.
  uint64_t count = 0;   // Number of runs.
  // Whether each run has a contiguous place in the output.
  bool in_place = false;
};
RunShape ShapeOfRuns(const ElementGrid& grid, uint64_t largest_hole);

// Calls `take` for runs that cover every element of the grid, in ascending
// order. Runs at most `largest_hole` bytes apart are merged. Runs never
// overlap.
void ForEachRun(const ElementGrid& grid, uint64_t largest_hole,
                const std::function<void(const ElementRun&)>& take);

// A row of `count` evenly spaced elements, starting at element `begin`.
struct ElementRow {
  uint64_t begin = 0;
  uint64_t out = 0;
  uint64_t count = 0;
  uint64_t stride = 0;
  int64_t out_stride = 0;
};

// Calls `take` for rows that cover every element of the grid that starts in
// [begin, end) of the storage.
void ForEachRow(const ElementGrid& grid, uint64_t begin, uint64_t end,
                const std::function<void(const ElementRow&)>& take);

// Copies `count` elements. `stride` and `out_stride` are distances in elements
// of `item_bytes`.
void CopyRow(const std::byte* from, int64_t stride, std::byte* out,
             int64_t out_stride, uint64_t item_bytes, uint64_t count);

}  // namespace haulway
