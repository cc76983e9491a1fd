#include "tensor/rectangle_runs.h"

namespace haulway {

RectangleRuns::RectangleRuns(uint64_t item_bytes,
                             std::span<const int64_t> shape,
                             std::span<const int64_t> begin,
                             std::span<const int64_t> sizes,
                             std::span<const int64_t> strides)
    : item_bytes_(item_bytes), sizes_(sizes), strides_(strides) {
  const size_t rank = shape.size();
  inner_ = rank;
  run_bytes_ = item_bytes;
  steps_.resize(rank);
  uint64_t stride = item_bytes;
  for (size_t d = rank; d-- > 0;) {
    steps_[d] = stride;
    first_ += stride * static_cast<uint64_t>(begin[d]);
    stride *= static_cast<uint64_t>(shape[d]);
  }
  // A dimension belongs to the run if its elements follow one another where
  // they are stored, and the dimensions within it are spanned completely.
  int64_t dense = 1;
  bool is_spanned = true;
  while (inner_ > 0 && is_spanned) {
    const size_t d = inner_ - 1;
    if (!strides.empty() && sizes[d] != 1 && strides[d] != dense) break;
    --inner_;
    dense *= sizes[d];
    run_bytes_ *= static_cast<uint64_t>(sizes[d]);
    is_spanned = sizes[d] == shape[d];
  }
  for (size_t d = 0; d < inner_; ++d) {
    count_ *= static_cast<uint64_t>(sizes[d]);
  }
}

uint64_t RectangleRuns::StoredAt(uint64_t number) const {
  if (strides_.empty()) return number * run_bytes_;
  uint64_t at = 0;
  for (size_t d = inner_; d-- > 0;) {
    const auto size = static_cast<uint64_t>(sizes_[d]);
    at += number % size * static_cast<uint64_t>(strides_[d]);
    number /= size;
  }
  return at * item_bytes_;
}

// Returns where a run begins in the tensor.
uint64_t RectangleRuns::PlaceOf(uint64_t number) const {
  uint64_t at = first_;
  for (size_t d = inner_; d-- > 0;) {
    const auto size = static_cast<uint64_t>(sizes_[d]);
    at += number % size * steps_[d];
    number /= size;
  }
  return at;
}

// Returns the first run that ends after byte `begin` of the tensor. Places
// ascend with the number.
uint64_t RectangleRuns::FirstAfter(uint64_t begin) const {
  uint64_t low = 0;
  uint64_t high = count_;
  while (low < high) {
    const uint64_t middle = low + (high - low) / 2;
    if (PlaceOf(middle) + run_bytes_ <= begin) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace haulway
