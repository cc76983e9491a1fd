// A Deadline is the end of one call: after a time, or by cancellation.

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

  // No deadline.
  Deadline() = default;
  // The deadline is `limit` from now; no deadline if `limit` is 0.
  explicit Deadline(std::chrono::milliseconds limit) : limit_(limit) {
    if (limit.count() > 0) end_ = Clock::now() + limit;
  }

  bool IsOver(std::chrono::milliseconds later = {}) const {
    return end_.has_value() && Clock::now() + later >= *end_;
  }

  // Returns the failure to report after the deadline.
  Status Failure() const {
    return Status(
        Code::kTimeout,
        fmt::format("there was no answer within {} ms", limit_.count()));
  }

  // Returns a copy that permits the call to continue for `grace` after a
  // cancellation; for calls that clean up after a cancelled call.
  Deadline WithGrace(std::chrono::milliseconds grace) const {
    Deadline with = *this;
    with.grace_ = grace;
    return with;
  }

  // Returns whether the thread's CancelScope ends the call.
  bool IsCancelled() const {
    if (!CancelScope::IsCancelled()) return false;
    if (!give_up_.has_value()) give_up_ = Clock::now() + grace_;
    return Clock::now() >= *give_up_;
  }

  // Returns the earlier of the deadline and `other`.
  Clock::time_point Earlier(Clock::time_point other) const {
    return end_.has_value() ? std::min(*end_, other) : other;
  }

 private:
  std::chrono::milliseconds limit_{0};
  std::optional<Clock::time_point> end_;
  std::chrono::milliseconds grace_{0};
  mutable std::optional<Clock::time_point> give_up_;  // Set after cancellation.
};

}  // namespace haulway::redis
