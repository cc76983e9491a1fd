#include "io/write_route.h"

#include <algorithm>

namespace haulway {

WriteWay WriteRoute::Next() {
  const std::lock_guard lock(mutex_);
  if (way_ == WriteWay::kDirect) ++under_way_;
  return way_;
}

void WriteRoute::Took(WriteWay way, uint64_t bytes, uint64_t nanoseconds) {
  const std::lock_guard lock(mutex_);
  uint64_t together = 1;
  if (way == WriteWay::kDirect) together = std::max<uint64_t>(under_way_--, 1);
  if (way != way_) return;  // The request began before the route changed.
  window_bytes_ += bytes;
  window_nanoseconds_ += nanoseconds / together;
  if (window_bytes_ < kWindowBytes) return;
  uint64_t& cost = costs_[Row(way)];
  cost = window_nanoseconds_ / (window_bytes_ / kMiB);
  window_bytes_ = 0;
  window_nanoseconds_ = 0;
  const WriteWay other =
      way == WriteWay::kCached ? WriteWay::kDirect : WriteWay::kCached;
  if (cost > costs_[Row(other)] + costs_[Row(other)] / 4) way_ = other;
}

}  // namespace haulway
