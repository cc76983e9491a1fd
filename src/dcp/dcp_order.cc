#include "dcp/dcp_order.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "base/checked.h"

namespace haulway::dcp {

namespace {

// Returns the dimensions by decreasing stride: the order of the data.
// Dimensions of size 1 come last, because their strides do not matter.
std::vector<size_t> DataOrder(std::span<const uint64_t> sizes,
                              std::span<const uint64_t> strides) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t d) {
    return sizes[d] == 1 ? 0 : strides[d];
  });
  return order;
}

// Returns the strides of the box's elements when they are packed without others
// between them, in the order of the data.
std::vector<uint64_t> DenseStrides(const ElementBox& box) {
  const std::vector<size_t> order = DataOrder(box.sizes, box.strides);
  std::vector<uint64_t> strides(order.size());
  uint64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    strides[order[i]] = stride;
    stride *= box.sizes[order[i]];
  }
  return strides;
}

// Increments a multi-dimensional counter, the last dimension fastest. Returns
// false after the last value.
bool Next(std::span<const uint64_t> sizes, std::vector<uint64_t>* number) {
  for (size_t d = sizes.size(); d-- > 0;) {
    if (++(*number)[d] < sizes[d]) return true;
    (*number)[d] = 0;
  }
  return false;
}

uint64_t PlaceOf(std::span<const uint64_t> number,
                 std::span<const uint64_t> strides) {
  return std::inner_product(number.begin(), number.end(), strides.begin(),
                            uint64_t{0});
}

class BoxCut {
 public:
  BoxCut(std::span<const int64_t> sizes, std::span<const int64_t> strides)
      : sizes_(sizes.begin(), sizes.end()),
        strides_(strides.begin(), strides.end()),
        below_(sizes.size() + 1, 1) {
    for (size_t d = sizes.size(); d-- > 0;) {
      below_[d] = below_[d + 1] * sizes_[d];
    }
  }

  // Adds elements [begin, end) of the part of the chunk that consists of the
  // dimensions from `d` on. `first` is the offset of the part in the data.
  void Add(size_t d, uint64_t first, uint64_t begin, uint64_t end) {
    if (begin >= end) return;
    if (d == sizes_.size()) {
      boxes_.push_back({first, {}, {}});
      return;
    }
    const uint64_t row = below_[d + 1];
    const uint64_t whole = (begin + row - 1) / row;  // First complete row.
    // End of the complete rows.
    const uint64_t rest = std::max(end / row, whole);
    if (begin < whole * row) {
      AddRow(d, first, whole - 1, begin, std::min(end, whole * row));
    }
    if (whole < rest) {
      ElementBox box{
          first + whole * strides_[d],
          {sizes_.begin() + static_cast<ptrdiff_t>(d), sizes_.end()},
          {strides_.begin() + static_cast<ptrdiff_t>(d), strides_.end()}};
      box.sizes[0] = rest - whole;
      boxes_.push_back(std::move(box));
    }
    AddRow(d, first, rest, std::max(begin, rest * row), end);
  }

  std::vector<ElementBox> Take() { return std::move(boxes_); }

 private:
  void AddRow(size_t d, uint64_t first, uint64_t number, uint64_t begin,
              uint64_t end) {
    if (begin >= end) return;
    const uint64_t start = number * below_[d + 1];
    Add(d + 1, first + number * strides_[d], begin - start, end - start);
  }

  const std::vector<uint64_t> sizes_;
  const std::vector<uint64_t> strides_;
  // Number of elements in the dimensions from d on.
  std::vector<uint64_t> below_;
  std::vector<ElementBox> boxes_;
};

}  // namespace

bool IsReordered(std::span<const int64_t> sizes,
                 std::span<const int64_t> strides) {
  const std::vector<uint64_t> extents(sizes.begin(), sizes.end());
  const std::vector<uint64_t> steps(strides.begin(), strides.end());
  const std::vector<size_t> order = DataOrder(extents, steps);
  uint64_t stride = 1;
  for (size_t i = order.size(); i-- > 0;) {
    if (extents[order[i]] == 1) continue;
    if (steps[order[i]] != stride ||
        !CheckedMultiply(stride, extents[order[i]], &stride)) {
      return false;
    }
  }
  return true;
}

std::vector<ElementBox> BoxesOf(std::span<const int64_t> sizes,
                                std::span<const int64_t> strides,
                                uint64_t begin, uint64_t end) {
  BoxCut cut(sizes, strides);
  cut.Add(0, 0, begin, end);
  return cut.Take();
}

uint64_t CountOf(const ElementBox& box) {
  return std::accumulate(box.sizes.begin(), box.sizes.end(), uint64_t{1},
                         std::multiplies<>());
}

void ForEachRun(
    const ElementBox& box,
    const std::function<void(uint64_t first, uint64_t count)>& each) {
  std::vector<size_t> order = DataOrder(box.sizes, box.strides);
  uint64_t count = 1;
  while (!order.empty() &&
         (box.sizes[order.back()] == 1 || box.strides[order.back()] == count)) {
    count *= box.sizes[order.back()];
    order.pop_back();
  }
  std::vector<uint64_t> sizes;
  std::vector<uint64_t> strides;
  for (const size_t d : order) {
    sizes.push_back(box.sizes[d]);
    strides.push_back(box.strides[d]);
  }
  std::vector<uint64_t> number(order.size());
  do {
    each(box.first + PlaceOf(number, strides), count);
  } while (Next(sizes, &number));
}

void PlaceBox(const ElementBox& box, uint64_t item,
              std::span<const std::byte> data, std::span<std::byte> out) {
  const std::vector<uint64_t> strides = DenseStrides(box);
  const size_t rank = box.sizes.size();
  const uint64_t row = rank == 0 ? 1 : box.sizes[rank - 1];
  const uint64_t step = rank == 0 ? 0 : strides[rank - 1] * item;
  const std::span<const uint64_t> outer =
      std::span(box.sizes).first(rank == 0 ? 0 : rank - 1);
  std::vector<uint64_t> number(outer.size());
  std::byte* to = out.data();
  do {
    const std::byte* from =
        data.data() +
        PlaceOf(number, std::span(strides).first(number.size())) * item;
    for (uint64_t i = 0; i < row; ++i, from += step, to += item) {
      std::memcpy(to, from, item);
    }
  } while (Next(outer, &number));
}

}  // namespace haulway::dcp
