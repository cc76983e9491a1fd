// Cancels decoding and measures its time.

#pragma once

#include <chrono>
#include <cstdint>

#include "haulway/status.h"

namespace haulway {

// Measures the time since its construction.
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

// A DecodeWatch is called while storages are decoded. This base class never
// cancels and records no times.
//
// Threads: any number at once.
class DecodeWatch {
 public:
  virtual ~DecodeWatch() = default;
  // Returns the failure with which decoding is to end, if any.
  virtual Status CheckCancelled() const { return Status(); }
  virtual void AddDecodeTime(const StageClock&) {}
  virtual void AddVerifyTime(const StageClock&) {}

  // Returns an instance of this base class.
  static DecodeWatch* None();
};

}  // namespace haulway
