// How a rectangle of a tensor lies in the tensor: runs of equal length.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace haulway {

// A RectangleRuns is the list of the runs of a rectangle whose elements are
// stored on their own: bytes that follow one another both there and in the
// tensor, which is row-major. Runs are numbered in the tensor's order.
//
// Lifetime: the sizes and strides that it was made of outlive it.
class RectangleRuns {
 public:
  // `begin` and `sizes` are the rectangle's place in the shape; `strides` those
  // of its elements where they are stored, in elements; empty: row-major, with
  // nothing between them. Requires: the rectangle lies within the shape, whose
  // bytes do not overflow.
  RectangleRuns(uint64_t item_bytes, std::span<const int64_t> shape,
                std::span<const int64_t> begin, std::span<const int64_t> sizes,
                std::span<const int64_t> strides);

  uint64_t count() const { return count_; }
  // Returns whether runs are single elements.
  bool is_scattered() const { return run_bytes_ == item_bytes_ && count_ > 1; }

  // Returns where a run begins, in bytes from the rectangle's first element on,
  // where the elements are stored.
  uint64_t StoredAt(uint64_t number) const;

  // Calls use(number, skipped, from, length) for each run with bytes in [begin,
  // end) of the tensor: the bytes of the run that are skipped, and where the
  // rest begins after `begin`. Ends when it returns false.
  template <class Use>
  void ForEach(uint64_t begin, uint64_t end, const Use& use) const {
    for (uint64_t number = FirstAfter(begin); number < count_; ++number) {
      const uint64_t at = PlaceOf(number);
      if (at >= end) return;
      const uint64_t from = std::max(at, begin);
      const uint64_t to = std::min(at + run_bytes_, end);
      if (!use(number, from - at, from - begin, to - from)) return;
    }
  }

 private:
  uint64_t PlaceOf(uint64_t number) const;
  uint64_t FirstAfter(uint64_t begin) const;

  const uint64_t item_bytes_;
  const std::span<const int64_t> sizes_;
  const std::span<const int64_t> strides_;
  size_t inner_ = 0;  // The first dimension within a run.
  uint64_t run_bytes_ = 0;
  uint64_t count_ = 1;
  uint64_t first_ = 0;           // Where the first run begins in the tensor.
  std::vector<uint64_t> steps_;  // The tensor's strides, in bytes.
};

}  // namespace haulway
