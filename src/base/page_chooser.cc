#include "base/page_chooser.h"

#include <algorithm>

namespace haulway {

namespace {

// Huge pages may cost at most 1 / kWasteShare of the total time more than small
// pages would have cost.
constexpr int64_t kWasteShare = 8;
// Savings by huge pages count up to this many small units, so that one slow
// unit changes nothing and many in a row soon do.
constexpr int64_t kMostSaved = 16;

}  // namespace

int64_t PageChooser::SmallMean() const {
  const Cost& small = costs_[Row(PageKind::kSmall)];
  return static_cast<int64_t>(small.nanoseconds / small.units);
}

PageKind PageChooser::Kinder() const {
  const Cost& small = costs_[Row(PageKind::kSmall)];
  const Cost& huge = costs_[Row(PageKind::kHuge)];
  if (huge.units == 0) {
    return under_way_[Row(PageKind::kHuge)] > 0 ? PageKind::kSmall
                                                : PageKind::kHuge;
  }
  if (small.units == 0) return PageKind::kSmall;
  // The last huge unit predicts the next: blocks that a host must supply come
  // in runs.
  const int64_t excess = std::max<int64_t>(last_huge_ - SmallMean(), 0);
  if (excess > 0 && under_way_[Row(PageKind::kHuge)] > 0) {
    return PageKind::kSmall;
  }
  const auto spent = static_cast<int64_t>(small.nanoseconds + huge.nanoseconds);
  return wasted_ + excess <= spent / kWasteShare ? PageKind::kHuge
                                                 : PageKind::kSmall;
}

PageKind PageChooser::Next() {
  const std::lock_guard lock(mutex_);
  const PageKind kind = Kinder();
  ++under_way_[Row(kind)];
  return kind;
}

void PageChooser::Took(PageKind kind, uint64_t nanoseconds) {
  const std::lock_guard lock(mutex_);
  Cost& cost = costs_[Row(kind)];
  ++cost.units;
  cost.nanoseconds += nanoseconds;
  --under_way_[Row(kind)];
  if (kind == PageKind::kHuge) {
    last_huge_ = static_cast<int64_t>(nanoseconds);
    ++unjudged_.units;
    unjudged_.nanoseconds += nanoseconds;
  }
  if (costs_[Row(PageKind::kSmall)].units == 0) return;
  wasted_ += static_cast<int64_t>(unjudged_.nanoseconds) -
             static_cast<int64_t>(unjudged_.units) * SmallMean();
  wasted_ = std::max(wasted_, -kMostSaved * SmallMean());
  unjudged_ = {};
}

PageKind PageChooser::kinder() const {
  const std::lock_guard lock(mutex_);
  return Kinder();
}

PageChooser::Cost PageChooser::cost(PageKind kind) const {
  const std::lock_guard lock(mutex_);
  return costs_[Row(kind)];
}

}  // namespace haulway
