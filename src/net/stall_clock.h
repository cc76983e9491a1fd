// A StallClock tells when a transfer has stalled: fewer bytes than
// kLeastBytesPerSecond have moved during the last window.
//
// Threads: one at a time.

#pragma once

#include <chrono>
#include <cstdint>
#include <deque>

namespace haulway::net {

class StallClock {
 public:
  using Clock = std::chrono::steady_clock;

  static constexpr uint64_t kLeastBytesPerSecond = 1000;

  explicit StallClock(std::chrono::milliseconds window) : window_(window) {}

  std::chrono::milliseconds window() const { return window_; }

  // Begins a transfer. `moved`: the number of bytes so far, from any origin.
  void Begin(Clock::time_point now, uint64_t moved = 0) {
    marks_ = {{now, moved}};
  }

  // Requires: Begin() was called.
  bool IsStalled(Clock::time_point now, uint64_t moved = 0) {
    if (moved != marks_.back().moved &&
        now - marks_.back().at >= window_ / kMarksInWindow) {
      marks_.push_back({now, moved});
    }
    while (marks_.size() > 1 && marks_[1].at <= now - window_) {
      marks_.pop_front();
    }
    if (now - marks_.front().at < window_) return false;
    const auto seconds = std::chrono::duration<double>(window_).count();
    return static_cast<double>(moved - marks_.front().moved) <
           seconds * static_cast<double>(kLeastBytesPerSecond);
  }

 private:
  // How many bytes had moved at a time.
  struct Mark {
    Clock::time_point at;
    uint64_t moved;
  };
  // Limits the memory, and the error of a window.
  static constexpr int kMarksInWindow = 100;

  std::chrono::milliseconds window_;
  // The last mark before the window, and those in it.
  std::deque<Mark> marks_;
};

}  // namespace haulway::net
