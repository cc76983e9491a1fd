// Slices of tensors: which bytes of a storage they need, and how these come to
// lie in dense, row-major memory. Pure; no I/O.

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

// One loop over elements: how far a step leads in the storage and in the
// output, counted in elements.
struct GridDim {
  uint64_t count = 1;
  uint64_t stride = 0;
  int64_t out_stride = 0;
};

// An ElementGrid is a set of elements of a storage and their places in the
// output. Loops are ordered from the largest stride to the smallest, those of
// stride 0 first; each is at least two long, and two that are one are merged.
struct ElementGrid {
  uint64_t item_bytes = 1;
  uint64_t count = 0;      // Elements; the rest means nothing if it is 0.
  uint64_t first = 0;      // The lowest element, from the storage's start.
  uint64_t out_first = 0;  // Where that one goes.
  std::vector<GridDim> dims;

  // How many elements lie from the lowest to the highest.
  uint64_t Extent() const { return ExtentFrom(0); }
  // The same of the loops from number `d` on alone.
  uint64_t ExtentFrom(size_t d) const;
};

// The elements of a slice of the tensor. `slice` is empty, or has an entry for
// each dimension. Fails with kInvalidArgument if it leaves the shape.
Result<ElementGrid> MakeGrid(const TensorInfo& tensor,
                             std::span<const DimSlice> slice);

// `count` elements next to one another, from the first on.
ElementGrid DenseGrid(uint64_t count, uint64_t item_bytes);

// A run of a storage, in elements. Where it is dense and goes to a run of the
// output, `out` says where.
struct ElementRun {
  uint64_t begin = 0;
  uint64_t end = 0;
  std::optional<uint64_t> out;
};

// How ForEachRun() cuts a grid into runs.
struct RunShape {
  size_t outer = 0;       // Loops that separate runs.
  uint64_t length = 0;    // Elements in each run.
  uint64_t count = 0;     // Number of runs.
  bool in_place = false;  // Whether runs have a place in the output.
};
RunShape ShapeOfRuns(const ElementGrid& grid, uint64_t largest_hole);

// Calls `take` for runs that together hold every element of the grid, from
// the lowest to the highest; runs that lie up to `largest_hole` bytes apart
// are one, and they never overlap.
void ForEachRun(const ElementGrid& grid, uint64_t largest_hole,
                const std::function<void(const ElementRun&)>& take);

// A row of elements that lie evenly: `count` of them from element `begin` on.
struct ElementRow {
  uint64_t begin = 0;
  uint64_t out = 0;
  uint64_t count = 0;
  uint64_t stride = 0;
  int64_t out_stride = 0;
};

// Calls `take` for rows that together hold every element of the grid that
// starts in [begin, end) of the storage.
void ForEachRow(const ElementGrid& grid, uint64_t begin, uint64_t end,
                const std::function<void(const ElementRow&)>& take);

// Copies elements whose addresses are `stride` apart, in elements of
// `item_bytes`, to addresses `out_stride` apart.
void CopyRow(const std::byte* from, int64_t stride, std::byte* out,
             int64_t out_stride, uint64_t item_bytes, uint64_t count);

}  // namespace haulway
