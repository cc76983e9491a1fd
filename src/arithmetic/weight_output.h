// The part of a weight that a caller asked for.

#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "arithmetic/shapes.h"
#include "arithmetic/weight.h"
#include "haulway/dtype.h"

namespace haulway::arithmetic {

// Where the elements of a range of a weight go.
class WeightOutput {
 public:
  WeightOutput(const Weight& weight, uint64_t begin, std::span<std::byte> out)
      : item_(ItemBytes(weight.terms.to)), begin_(begin), out_(out) {}

  uint64_t first() const { return begin_ / item_; }
  uint64_t end() const { return CeilDivide(begin_ + out_.size(), item_); }

  // Calls compute(memory) for `count` elements from `at` on, which must
  // overlap the range, and keeps those in the range.
  template <class Compute>
  void Put(uint64_t at, uint64_t count, const Compute& compute) {
    const uint64_t from = at * item_;
    const uint64_t to = from + count * item_;
    const uint64_t stop = begin_ + out_.size();
    if (from >= begin_ && to <= stop) {
      compute(out_.data() + (from - begin_));
      return;
    }
    memory_.resize(std::max<size_t>(memory_.size(), count * item_));
    compute(memory_.data());
    const uint64_t first = std::max(from, begin_);
    std::memcpy(out_.data() + (first - begin_), memory_.data() + (first - from),
                std::min(to, stop) - first);
  }

 private:
  const uint64_t item_;
  const uint64_t begin_;  // In bytes.
  const std::span<std::byte> out_;
  std::vector<std::byte> memory_;
};

}  // namespace haulway::arithmetic
