// Design: a slice of a strided tensor is a nest of loops over the bytes of its
// storage. Loops of one step are dropped, the rest are sorted by stride, and
// loops that form one run together are merged. The remaining loops give the
// length and the distance of runs, and so whether reading the holes between
// them is cheaper. Every index is checked to lie within the storage here,
// although the reader has checked the whole tensor.
//
// Walking element by element would take one step per element for a slice of
// columns, and slices exist to avoid reading the whole storage. Negative steps
// keep their order in the result, but their runs are read in ascending order.

#include "load/tensor_slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "base/checked.h"

namespace haulway {

namespace {

uint64_t Magnitude(int64_t number) {
  return number < 0 ? uint64_t{0} - static_cast<uint64_t>(number)
                    : static_cast<uint64_t>(number);
}

uint64_t CeilDivide(uint64_t a, uint64_t b) { return a / b + (a % b != 0); }

Status Leaves(const DimSlice& slice, size_t d, int64_t size) {
  return Status(Code::kInvalidArgument,
                fmt::format("slice {}:{}:{} of dimension {} leaves it: "
                            "expected indices of {} elements",
                            slice.start, slice.stop, slice.step, d, size));
}

Status CheckSlice(const DimSlice& slice, size_t d, int64_t size) {
  if (slice.step == 0) {
    return Status(Code::kInvalidArgument,
                  fmt::format("slice of dimension {} has step 0", d));
  }
  const int64_t lowest = slice.step > 0 ? 0 : -1;
  const int64_t highest = slice.step > 0 ? size : size - 1;
  for (const int64_t bound : {slice.start, slice.stop}) {
    if (bound < lowest || bound > highest) return Leaves(slice, d, size);
  }
  return Status();
}

// Drops loops of one element, sorts the rest, and merges loops that form one
// run.
void Simplify(std::vector<GridDim>* dims) {
  std::erase_if(*dims, [](const GridDim& dim) { return dim.count == 1; });
  std::ranges::stable_sort(*dims, [](const GridDim& a, const GridDim& b) {
    // Subtracting 1 turns stride 0 into the largest value.
    return a.stride - 1 > b.stride - 1;
  });
  for (size_t d = dims->size(); d-- > 1;) {
    GridDim& outer = (*dims)[d - 1];
    const GridDim& inner = (*dims)[d];
    uint64_t span = 0;
    int64_t out_span = 0;
    if (!CheckedMultiply(inner.stride, inner.count, &span) ||
        __builtin_mul_overflow(inner.out_stride,
                               static_cast<int64_t>(inner.count), &out_span) ||
        outer.stride != span || outer.out_stride != out_span) {
      continue;
    }
    outer = {outer.count * inner.count, inner.stride, inner.out_stride};
    dims->erase(dims->begin() + static_cast<ptrdiff_t>(d));
  }
}

template <size_t kBytes>
void CopyItems(const std::byte* from, int64_t stride, std::byte* out,
               int64_t out_stride, uint64_t count) {
  const auto size = static_cast<int64_t>(kBytes);
  for (uint64_t i = 0; i < count; ++i) {
    std::memcpy(out, from, kBytes);
    from += stride * size;
    out += out_stride * size;
  }
}

// Walks the loops `d` and up for ForEachRow().
class RowWalk {
 public:
  RowWalk(const ElementGrid& grid, uint64_t begin, uint64_t end,
          const std::function<void(const ElementRow&)>& take)
      : grid_(grid), begin_(begin), end_(end), take_(take) {
    for (size_t d = 0; d <= grid.dims.size(); ++d) {
      extents_.push_back(grid.ExtentFrom(d));
    }
  }

  void Visit(size_t d, uint64_t base, int64_t out) const {
    const GridDim& dim = grid_.dims[d];
    const uint64_t extent = extents_[d + 1];
    uint64_t low = 0;
    uint64_t high = dim.count;
    if (dim.stride != 0) {
      if (base >= end_) return;
      high = std::min(high, CeilDivide(end_ - base, dim.stride));
      if (base + (extent - 1) < begin_) {
        low = CeilDivide(begin_ - base - (extent - 1), dim.stride);
      }
    } else if (base >= end_ || base + (extent - 1) < begin_) {
      return;
    }
    if (low >= high) return;
    base += low * dim.stride;
    out += static_cast<int64_t>(low) * dim.out_stride;
    if (d + 1 == grid_.dims.size()) {
      take_({base, static_cast<uint64_t>(out), high - low, dim.stride,
             dim.out_stride});
      return;
    }
    for (uint64_t i = low; i < high; ++i) {
      Visit(d + 1, base, out);
      base += dim.stride;
      out += dim.out_stride;
    }
  }

 private:
  const ElementGrid& grid_;
  const uint64_t begin_;
  const uint64_t end_;
  const std::function<void(const ElementRow&)>& take_;
  std::vector<uint64_t> extents_;
};

}  // namespace

uint64_t Count(const DimSlice& slice) {
  const bool forward = slice.step > 0;
  if (forward ? slice.start >= slice.stop : slice.start <= slice.stop) return 0;
  // Unsigned subtraction cannot overflow.
  const uint64_t span = forward ? static_cast<uint64_t>(slice.stop) -
                                      static_cast<uint64_t>(slice.start)
                                : static_cast<uint64_t>(slice.start) -
                                      static_cast<uint64_t>(slice.stop);
  return CeilDivide(span, Magnitude(slice.step));
}

uint64_t ElementGrid::ExtentFrom(size_t d) const {
  uint64_t extent = 1;
  for (; d < dims.size(); ++d) extent += (dims[d].count - 1) * dims[d].stride;
  return extent;
}

Result<ElementGrid> MakeGrid(const TensorInfo& tensor,
                             std::span<const DimSlice> slice) {
  const size_t rank = tensor.shape.size();
  if (!slice.empty() && slice.size() != rank) {
    return Status(Code::kInvalidArgument,
                  fmt::format("slice: expected {} dimensions, found {}", rank,
                              slice.size()));
  }
  ElementGrid grid;
  grid.item_bytes = ItemBytes(tensor.dtype);
  grid.first = tensor.storage_offset;
  grid.count = 1;
  std::vector<uint64_t> counts(rank);
  for (size_t d = 0; d < rank; ++d) {
    const DimSlice whole{0, tensor.shape[d], 1};
    const DimSlice& wanted = slice.empty() ? whole : slice[d];
    HAULWAY_TRY(CheckSlice(wanted, d, tensor.shape[d]));
    counts[d] = Count(wanted);
  }
  if (std::ranges::find(counts, 0) != counts.end()) {
    grid.count = 0;
    return grid;
  }
  // From here on every index lies within the shape, so the reader's check of
  // the tensor also covers the slice. The values are checked again all the
  // same.
  const auto wrong = [] {
    return Status(Code::kInvalidArgument, "slice: its size overflows");
  };
  for (size_t d = rank; d-- > 0;) {
    const DimSlice wanted =
        slice.empty() ? DimSlice{0, tensor.shape[d], 1} : slice[d];
    const bool backward = wanted.step < 0;
    const auto stride = static_cast<uint64_t>(tensor.strides[d]);
    const uint64_t step = counts[d] == 1 ? 1 : Magnitude(wanted.step);
    const uint64_t last = static_cast<uint64_t>(wanted.start) -
                          (backward ? (counts[d] - 1) * step : 0);
    GridDim dim{counts[d], 0, static_cast<int64_t>(grid.count)};
    uint64_t skipped = 0;
    if (!CheckedMultiply(stride, step, &dim.stride) ||
        !CheckedMultiply(stride, last, &skipped) ||
        !CheckedAdd(grid.first, skipped, &grid.first)) {
      return wrong();
    }
    if (backward) {
      grid.out_first += (counts[d] - 1) * grid.count;
      dim.out_stride = -dim.out_stride;
    }
    grid.dims.push_back(dim);
    if (!CheckedMultiply(grid.count, counts[d], &grid.count) ||
        grid.count > INT64_MAX) {
      return wrong();
    }
  }
  uint64_t end = grid.first;
  for (const GridDim& dim : grid.dims) {
    uint64_t reach = 0;
    if (!CheckedMultiply(dim.count - 1, dim.stride, &reach) ||
        !CheckedAdd(end, reach, &end)) {
      return wrong();
    }
  }
  uint64_t bytes = 0;
  if (!CheckedAdd(end, 1, &end) ||
      !CheckedMultiply(end, grid.item_bytes, &bytes) ||
      !CheckedMultiply(grid.count, grid.item_bytes, &bytes)) {
    return wrong();
  }
  Simplify(&grid.dims);
  return grid;
}

ElementGrid DenseGrid(uint64_t count, uint64_t item_bytes) {
  ElementGrid grid;
  grid.item_bytes = item_bytes;
  grid.count = count;
  if (count > 1) grid.dims.push_back({count, 1, 1});
  return grid;
}

RunShape ShapeOfRuns(const ElementGrid& grid, uint64_t largest_hole) {
  RunShape shape;
  if (grid.count == 0) return shape;
  const uint64_t hole = largest_hole / grid.item_bytes;
  size_t zeros = 0;  // Number of loops of stride 0.
  while (zeros < grid.dims.size() && grid.dims[zeros].stride == 0) ++zeros;
  shape.outer = grid.dims.size();
  shape.length = 1;
  shape.in_place = true;
  for (size_t d = grid.dims.size(); d-- > zeros;) {
    const GridDim& dim = grid.dims[d];
    const bool is_next = d + 1 == shape.outer;
    const bool dense = is_next && dim.stride == shape.length &&
                       dim.out_stride == static_cast<int64_t>(shape.length);
    const bool near = is_next && (dim.stride <= shape.length ||
                                  dim.stride - shape.length <= hole);
    // Merge runs that a further loop would interleave.
    if (!near && dim.stride >= grid.ExtentFrom(d + 1)) continue;
    shape.in_place = shape.in_place && dense;
    shape.length = grid.ExtentFrom(d);
    shape.outer = d;
  }
  shape.in_place = shape.in_place && zeros == 0;
  shape.count = 1;
  for (size_t d = zeros; d < shape.outer; ++d)
    shape.count *= grid.dims[d].count;
  return shape;
}

void ForEachRun(const ElementGrid& grid, uint64_t largest_hole,
                const std::function<void(const ElementRun&)>& take) {
  const RunShape shape = ShapeOfRuns(grid, largest_hole);
  const uint64_t hole = largest_hole / grid.item_bytes;
  std::vector<uint64_t> index(shape.outer, 0);
  ElementRun joined;  // Run that is not handed out yet; empty if `end` is 0.
  uint64_t begin = grid.first;
  uint64_t out = grid.out_first;
  for (uint64_t run = 0; run < shape.count; ++run) {
    const uint64_t end = begin + shape.length;
    if (joined.end != 0 && begin - joined.end <= hole) {
      joined.end = end;
      joined.out.reset();
    } else {
      if (joined.end != 0) take(joined);
      joined = {begin, end, std::nullopt};
      if (shape.in_place) joined.out = out;
    }
    for (size_t d = shape.outer; d-- > 0;) {
      const GridDim& dim = grid.dims[d];
      if (dim.stride == 0) break;
      begin += dim.stride;
      out += static_cast<uint64_t>(dim.out_stride);
      if (++index[d] < dim.count) break;
      begin -= dim.stride * dim.count;
      out -= static_cast<uint64_t>(dim.out_stride) * dim.count;
      index[d] = 0;
    }
  }
  if (joined.end != 0) take(joined);
}

void ForEachRow(const ElementGrid& grid, uint64_t begin, uint64_t end,
                const std::function<void(const ElementRow&)>& take) {
  if (grid.count == 0) return;
  if (grid.dims.empty()) {
    if (grid.first >= begin && grid.first < end) {
      take({grid.first, grid.out_first, 1, 1, 1});
    }
    return;
  }
  RowWalk(grid, begin, end, take)
      .Visit(0, grid.first, static_cast<int64_t>(grid.out_first));
}

void CopyRow(const std::byte* from, int64_t stride, std::byte* out,
             int64_t out_stride, uint64_t item_bytes, uint64_t count) {
  if (stride == 1 && out_stride == 1) {
    std::memcpy(out, from, count * item_bytes);
    return;
  }
  switch (item_bytes) {
    case 1:
      return CopyItems<1>(from, stride, out, out_stride, count);
    case 2:
      return CopyItems<2>(from, stride, out, out_stride, count);
    case 3:
      return CopyItems<3>(from, stride, out, out_stride, count);
    case 4:
      return CopyItems<4>(from, stride, out, out_stride, count);
    case 8:
      return CopyItems<8>(from, stride, out, out_stride, count);
    default:
      return CopyItems<16>(from, stride, out, out_stride, count);
  }
}

}  // namespace haulway
