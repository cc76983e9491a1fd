#include "arena/free_ranges.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

#include "arena/placement.h"

namespace haulway::arena {
namespace {

TEST(FreeRanges, TakesTheTightestFitAndTheLowestOfThem) {
  FreeRanges ranges(1000);
  ASSERT_EQ(ranges.Take(100), 0u);
  ASSERT_EQ(ranges.Take(50), 100u);
  ASSERT_EQ(ranges.Take(100), 150u);
  ranges.Give(0, 100);
  ranges.Give(150, 50);
  EXPECT_EQ(ranges.Take(50), 150u);
  EXPECT_EQ(ranges.Take(60), 0u);
}

TEST(FreeRanges, JoinsNeighbours) {
  FreeRanges ranges(300);
  ASSERT_EQ(ranges.Take(100), 0u);
  ASSERT_EQ(ranges.Take(100), 100u);
  ASSERT_EQ(ranges.Take(100), 200u);
  EXPECT_EQ(ranges.Take(1), std::nullopt);
  ranges.Give(0, 100);
  ranges.Give(200, 100);
  EXPECT_EQ(ranges.Take(101), std::nullopt);
  ranges.Give(100, 100);
  EXPECT_EQ(ranges.largest(), 300u);
  EXPECT_EQ(ranges.Take(300), 0u);
}

TEST(FreeRanges, NeverHandsOutABytesTwice) {
  constexpr uint64_t kSize = 4096;
  FreeRanges ranges(kSize);
  std::vector<bool> taken(kSize);
  std::vector<std::pair<uint64_t, uint64_t>> out;
  std::mt19937 random(7);
  uint64_t in_use = 0;
  for (int round = 0; round < 20'000; ++round) {
    const uint64_t bytes = 1 + random() % 300;
    const auto offset = ranges.Take(bytes);
    if (offset.has_value()) {
      ASSERT_LE(*offset + bytes, kSize);
      for (uint64_t i = 0; i < bytes; ++i) {
        ASSERT_FALSE(taken[*offset + i]);
        taken[*offset + i] = true;
      }
      out.emplace_back(*offset, bytes);
      in_use += bytes;
    }
    if (!out.empty() && (!offset.has_value() || random() % 2 == 0)) {
      std::swap(out[random() % out.size()], out.back());
      const auto [start, length] = out.back();
      out.pop_back();
      for (uint64_t i = 0; i < length; ++i) taken[start + i] = false;
      ranges.Give(start, length);
      in_use -= length;
    }
    ASSERT_EQ(ranges.free_bytes(), kSize - in_use);
  }
}

TEST(RingPlacement, GivesBackInOrderAndRollsBackTheLast) {
  RingPlacement ring(4096, 100);
  ASSERT_EQ(ring.Take(60), 0u);
  ASSERT_EQ(ring.Take(40), 60u);
  EXPECT_EQ(ring.Take(1), std::nullopt);
  ring.Give(60, 40);  // The last range: an aborted unit.
  ASSERT_EQ(ring.Take(30), 60u);
  ring.Give(0, 60);
  EXPECT_EQ(ring.Take(70), 90u);
}

}  // namespace
}  // namespace haulway::arena
