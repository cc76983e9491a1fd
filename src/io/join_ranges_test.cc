#include "io/join_ranges.h"

#include <gtest/gtest.h>

namespace haulway {
namespace {

bool Joins(ByteRange read, const ByteRange& next, const JoinLimits& limits,
           uint64_t length) {
  const ByteRange before = read;
  const bool joined = JoinRanges(&read, next, limits);
  EXPECT_EQ(read.offset, before.offset);
  EXPECT_EQ(read.length, joined ? length : before.length);
  return joined;
}

TEST(JoinRanges, ReadsAHoleOfTheLimitAndNoLargerOne) {
  EXPECT_TRUE(Joins({100, 10}, {115, 5}, {.largest_hole = 5}, 20));
  EXPECT_FALSE(Joins({100, 10}, {116, 5}, {.largest_hole = 5}, 0));
  EXPECT_TRUE(Joins({100, 10}, {110, 5}, {}, 15));
  EXPECT_FALSE(Joins({100, 10}, {111, 5}, {}, 0));
}

TEST(JoinRanges, MakesNoReadThatIsTooLarge) {
  EXPECT_TRUE(Joins({100, 10}, {110, 5}, {.largest_read = 15}, 15));
  EXPECT_FALSE(Joins({100, 10}, {110, 6}, {.largest_read = 15}, 0));
}

TEST(JoinRanges, TakesWhatOverlapsOnlyIfItMay) {
  EXPECT_TRUE(Joins({100, 10}, {105, 10}, {}, 15));
  EXPECT_TRUE(Joins({100, 10}, {102, 3}, {}, 10));
  EXPECT_FALSE(Joins({100, 10}, {105, 10}, {.may_overlap = false}, 0));
  EXPECT_TRUE(Joins({100, 10}, {110, 10}, {.may_overlap = false}, 20));
}

TEST(JoinRanges, TakesRangesAtTheEndOfAllOffsets) {
  EXPECT_TRUE(Joins({UINT64_MAX - 20, 10}, {UINT64_MAX - 10, 10}, {}, 20));
  EXPECT_FALSE(Joins({0, 10}, {UINT64_MAX - 10, 10}, {.largest_hole = 5}, 0));
}

TEST(LargestHole, IsThatOfTheSource) {
  EXPECT_EQ(LargestHole({}, 100), 100u);
  EXPECT_EQ(LargestHole({.remote = true}, 100), kServerHole);
  EXPECT_EQ(LargestHole({.remote = true}, 2 * kServerHole), 2 * kServerHole);
  EXPECT_EQ(LargestHole({.local_file = true, .remote = true}, 100), 100u);
  EXPECT_EQ(LargestHole({.remote = true, .gathers = true}, 100), 0u);
}

}  // namespace
}  // namespace haulway
