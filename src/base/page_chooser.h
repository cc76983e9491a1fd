// Chooses between small pages and large blocks of memory by the time they take.
// Large blocks are faster if the machine has them available, and slower if a
// host has to supply them first.
//
// Large blocks are chosen as long as they have cost, in total and net of their
// savings, at most an eighth of the time more than small pages would have. So
// slow ones are soon avoided and retried later, and a single slow one changes
// nothing.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "haulway/status.h"

namespace haulway {

enum class PageKind : uint8_t { kSmall, kHuge };

// A PageChooser chooses the kind of the next unit of memory from the times of
// earlier units.
//
// Threads: any number at once.
class PageChooser {
 public:
  PageKind Next();
  // Records the time of a unit. Call once for every Next().
  void Took(PageKind kind, uint64_t nanoseconds);
  // Returns the kind that Next() would return, for memory that is not timed.
  PageKind kinder() const;

  struct Cost {
    uint64_t units = 0;
    uint64_t nanoseconds = 0;  // Sum over all units.
  };
  Cost cost(PageKind kind) const;

 private:
  static size_t Row(PageKind kind) { return static_cast<size_t>(kind); }

  // Both require the mutex. SmallMean() also requires that a small unit was
  // timed.
  int64_t SmallMean() const;
  PageKind Kinder() const;

  mutable std::mutex mutex_;
  Cost costs_[2] HAULWAY_GUARDED_BY(mutex_);
  uint64_t under_way_[2] HAULWAY_GUARDED_BY(mutex_) = {};
  // Nanoseconds that the last huge unit took.
  int64_t last_huge_ HAULWAY_GUARDED_BY(mutex_) = 0;
  // Huge units not yet included in wasted_, because no small unit was timed.
  // wasted_: nanoseconds that huge units took more than small ones would have;
  // negative if they took less.
  Cost unjudged_ HAULWAY_GUARDED_BY(mutex_);
  int64_t wasted_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

// A PageTimer measures its own lifetime and reports it to a chooser: the time
// to populate `bytes` with pages of the kind that Next() returned, scaled to a
// whole unit of `unit_bytes`. Requires: `bytes` is not 0.
class PageTimer {
 public:
  PageTimer(PageChooser* chooser, PageKind kind, uint64_t bytes,
            uint64_t unit_bytes)
      : chooser_(*chooser), kind_(kind), bytes_(bytes), unit_(unit_bytes) {}
  PageTimer(const PageTimer&) = delete;
  PageTimer& operator=(const PageTimer&) = delete;
  ~PageTimer() {
    const std::chrono::nanoseconds took =
        std::chrono::steady_clock::now() - start_;
    chooser_.Took(kind_, static_cast<uint64_t>(took.count()) * unit_ / bytes_);
  }

 private:
  PageChooser& chooser_;
  const PageKind kind_;
  const uint64_t bytes_;
  const uint64_t unit_;
  const std::chrono::steady_clock::time_point start_ =
      std::chrono::steady_clock::now();
};

}  // namespace haulway
