// Who looks on while storages are decoded: ends it, and hears how long it took.

#pragma once

#include <chrono>
#include <cstdint>

#include "haulway/status.h"

namespace haulway {

// Measures from when it was made.
class StageClock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(Clock::now() - start_).count();
  }
  uint64_t nanoseconds() const {
    return static_cast<uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() -
                                                             start_)
            .count());
  }

 private:
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start_ = Clock::now();
};

// This one lets everything go on, and keeps no time.
//
// Threads: any number at once.
class DecodeWatch {
 public:
  virtual ~DecodeWatch() = default;
  // Not ok once decoding is to end: that becomes its failure.
  virtual Status CheckCancelled() const { return Status(); }
  virtual void AddDecodeTime(const StageClock&) {}
  virtual void AddVerifyTime(const StageClock&) {}

  // One for those who have none.
  static DecodeWatch* None();
};

}  // namespace haulway
