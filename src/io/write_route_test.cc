#include "io/write_route.h"

#include <gtest/gtest.h>

namespace haulway {
namespace {

constexpr uint64_t kMillisecond = 1'000'000;

// Makes `count` requests of 1 MiB, one at a time, by the chosen route. Returns
// the number of direct requests.
int Request(WriteRoute* route, int count, uint64_t cached, uint64_t direct) {
  int around = 0;
  for (int i = 0; i < count; ++i) {
    const WriteWay way = route->Next();
    around += way == WriteWay::kDirect ? 1 : 0;
    route->Took(way, kMiB, way == WriteWay::kDirect ? direct : cached);
  }
  return around;
}

TEST(WriteRoute, StaysWithAPageCacheThatIsAtHand) {
  WriteRoute route;
  EXPECT_EQ(Request(&route, 1000, kMillisecond / 3, kMillisecond / 100), 0);
}

TEST(WriteRoute, GoesAroundAPageCacheThatIsDear) {
  WriteRoute route;
  EXPECT_EQ(Request(&route, 1000, 2 * kMillisecond, kMillisecond / 2), 992);
}

TEST(WriteRoute, LeavesADiskThatIsDearerAndDoesNotTryAgain) {
  WriteRoute route;
  EXPECT_EQ(Request(&route, 1000, 2 * kMillisecond, 7 * kMillisecond), 8);
}

TEST(WriteRoute, TriesTheOtherWayAgainOnceThisOneBecomesDear) {
  WriteRoute route;
  Request(&route, 104, 2 * kMillisecond, kMillisecond / 2);
  EXPECT_EQ(Request(&route, 100, kMillisecond / 3, 4 * kMillisecond), 8);
}

TEST(WriteRoute, CountsOverlappingRequestsForTheirShare) {
  WriteRoute route;
  Request(&route, 8, 2 * kMillisecond, 0);
  // Four concurrent requests take 4 ms each, so 1 ms per MiB.
  for (int i = 0; i < 100; ++i) {
    for (int k = 0; k < 4; ++k) EXPECT_EQ(route.Next(), WriteWay::kDirect);
    for (int k = 4; k > 0; --k) {
      route.Took(WriteWay::kDirect, kMiB,
                 static_cast<uint64_t>(k) * kMillisecond);
    }
  }
}

}  // namespace
}  // namespace haulway
