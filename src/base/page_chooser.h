// Choosing, by the time they take, between small pages and large blocks of
// memory, which are the cheaper kind where the machine has them at hand and the
// dearer one where a host has to give them back first.
//
// Large ones are taken as long as they have cost, in all, little more than
// small ones would have (an eighth of the time), what they saved counted
// against it. So dear ones are soon left, tried again later, and one now and
// then changes nothing.

#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "haulway/status.h"

namespace haulway {

enum class PageKind : uint8_t { kSmall, kHuge };

// A PageChooser says of which kind the next unit of memory should be, by what
// the units before it took.
//
// Threads: any number at once.
class PageChooser {
 public:
  PageKind Next();
  // Told of every unit that Next() was asked for.
  void Took(PageKind kind, uint64_t nanoseconds);
  // What Next() would say, of memory that is not timed.
  PageKind kinder() const;

  struct Cost {
    uint64_t units = 0;
    uint64_t nanoseconds = 0;  // Sum over all units.
  };
  Cost cost(PageKind kind) const;

 private:
  static size_t Row(PageKind kind) { return static_cast<size_t>(kind); }

  // These two require the mutex; the first, that a small unit was timed.
  int64_t SmallMean() const;
  PageKind Kinder() const;

  mutable std::mutex mutex_;
  Cost costs_[2] HAULWAY_GUARDED_BY(mutex_);
  uint64_t under_way_[2] HAULWAY_GUARDED_BY(mutex_) = {};
  // Nanoseconds: the last huge unit, and what all of them took more than small
  // ones would have; less than nothing where they took less.
  int64_t last_huge_ HAULWAY_GUARDED_BY(mutex_) = 0;
  // Huge units that the sum does not include: no small one was timed yet.
  Cost unjudged_ HAULWAY_GUARDED_BY(mutex_);
  int64_t wasted_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

// A PageTimer tells a chooser, at its end, what happened since its beginning:
// `bytes` were brought in, of the kind that Next() gave, where a unit has
// `unit_bytes`. Requires: there are some.
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
