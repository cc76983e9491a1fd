#include "net/stall_clock.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

namespace haulway::net {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWindow{30'000};

// Returns when a transfer counts as stalled, if `moved` bytes have moved after
// so many milliseconds; looks every 50 ms.
int64_t StalledAt(const std::function<uint64_t(int64_t)>& moved) {
  const StallClock::Clock::time_point start;
  StallClock clock(kWindow);
  clock.Begin(start, moved(0));
  for (int64_t ms = 50; ms < 300'000; ms += 50) {
    if (clock.IsStalled(start + milliseconds(ms), moved(ms))) return ms;
  }
  return -1;
}

TEST(StallClock, CountsFromTheLastBytes) {
  EXPECT_EQ(StalledAt([](int64_t) { return 0; }), 30'000);
  for (const int64_t last : {1'000, 10'000, 29'950, 30'000, 45'000}) {
    // A megabyte a second up to then.
    const int64_t at = StalledAt([&](int64_t ms) {
      return static_cast<uint64_t>(std::min(ms, last)) * 1000;
    });
    EXPECT_GE(at, 30'000 + last - 50);
    // A window's last mark may be 300 ms late.
    EXPECT_LE(at, 30'000 + last + 300);
  }
}

TEST(StallClock, CountsBytesThatTrickle) {
  // Half of the least rate, after a fast start or from the beginning.
  EXPECT_EQ(StalledAt([](int64_t ms) { return static_cast<uint64_t>(ms / 2); }),
            30'000);
  const int64_t at = StalledAt(
      [](int64_t ms) { return static_cast<uint64_t>(1'000'000 + ms / 2); });
  EXPECT_EQ(at, 30'000);
  EXPECT_EQ(StalledAt([](int64_t ms) { return static_cast<uint64_t>(ms); }),
            -1);
  // In bursts, as fast on average.
  EXPECT_EQ(StalledAt([](int64_t ms) {
              return static_cast<uint64_t>((ms / 10'000 + 1) * 12'000);
            }),
            -1);
}

}  // namespace
}  // namespace haulway::net
