// When all that one call does must be over: after a time, or because it was
// cancelled.

#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway::redis {

class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  // Never.
  Deadline() = default;
  // From now on; never if that is 0.
  explicit Deadline(std::chrono::milliseconds limit) : limit_(limit) {
    if (limit.count() > 0) end_ = Clock::now() + limit;
  }

  bool IsOver(std::chrono::milliseconds later = {}) const {
    return end_.has_value() && Clock::now() + later >= *end_;
  }

  // What to fail with then.
  Status Failure() const {
    return Status(
        Code::kTimeout,
        fmt::format("there was no answer within {} ms", limit_.count()));
  }

  // How long after a cancellation the call may still take, for what removes
  // what a cancelled call leaves.
  Deadline WithGrace(std::chrono::milliseconds grace) const {
    Deadline with = *this;
    with.grace_ = grace;
    return with;
  }

  // Whether the thread's CancelScope ends the call.
  bool IsCancelled() const {
    if (!CancelScope::IsCancelled()) return false;
    if (!give_up_.has_value()) give_up_ = Clock::now() + grace_;
    return Clock::now() >= *give_up_;
  }

  // Whichever comes first.
  Clock::time_point Earlier(Clock::time_point other) const {
    return end_.has_value() ? std::min(*end_, other) : other;
  }

 private:
  std::chrono::milliseconds limit_{0};
  std::optional<Clock::time_point> end_;
  std::chrono::milliseconds grace_{0};
  mutable std::optional<Clock::time_point> give_up_;  // Once it is cancelled.
};

}  // namespace haulway::redis
