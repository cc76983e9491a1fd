#include "io/join_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace haulway {
namespace {

using testing::ElementsAre;

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

// 256 bytes that count up, and the reads of them.
class CountingSource : public ByteSource {
 public:
  std::string_view name() const override { return "counting"; }
  uint64_t size() const override { return 256; }
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    reads.emplace_back(offset, out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::byte(offset + i);
    return Status();
  }
  mutable std::vector<std::pair<uint64_t, uint64_t>> reads;
};

// Reads ranges, and returns the reads of the source that this took.
std::vector<std::pair<uint64_t, uint64_t>> ReadsOf(
    const std::vector<std::pair<uint64_t, uint64_t>>& ranges,
    const JoinedReads& how) {
  std::vector<std::vector<std::byte>> parts;
  std::vector<ReadRequest> requests;
  for (const auto& [offset, length] : ranges) parts.emplace_back(length);
  for (size_t i = 0; i < ranges.size(); ++i) {
    requests.push_back({ranges[i].first, parts[i]});
  }
  const CountingSource source;
  EXPECT_TRUE(ReadJoined(source, requests, how).ok());
  for (size_t i = 0; i < ranges.size(); ++i) {
    for (size_t b = 0; b < parts[i].size(); ++b) {
      EXPECT_EQ(parts[i][b], std::byte(ranges[i].first + b));
    }
  }
  return source.reads;
}

using Read = std::pair<uint64_t, uint64_t>;

TEST(ReadJoined, ReadsNeighboursAtOnceInAnyOrder) {
  const JoinedReads how = {.limits = {.largest_hole = 4}};
  EXPECT_THAT(ReadsOf({{20, 5}, {0, 10}, {12, 4}, {25, 3}}, how),
              ElementsAre(Read(0, 28)));
  EXPECT_THAT(ReadsOf({{0, 10}, {15, 5}}, how),
              ElementsAre(Read(0, 10), Read(15, 5)));
  EXPECT_THAT(ReadsOf({{0, 10}, {5, 2}, {3, 9}, {40, 0}}, how),
              ElementsAre(Read(0, 12)));
  EXPECT_THAT(ReadsOf({}, how), ElementsAre());
}

TEST(ReadJoined, ReadsWhatIsLongDirectly) {
  const JoinedReads how = {.limits = {.largest_hole = 4}, .direct_from = 20};
  EXPECT_THAT(ReadsOf({{0, 10}, {10, 20}, {30, 5}, {35, 5}}, how),
              ElementsAre(Read(0, 10), Read(10, 20), Read(30, 10)));
}

TEST(ReadJoined, LimitsTheWaste) {
  const JoinedReads how = {.limits = {.largest_hole = 50},
                           .limits_waste = true};
  EXPECT_THAT(ReadsOf({{0, 10}, {30, 10}}, how), ElementsAre(Read(0, 40)));
  EXPECT_THAT(ReadsOf({{0, 10}, {31, 10}}, how),
              ElementsAre(Read(0, 10), Read(31, 10)));
}

TEST(ReadJoined, KeepsItsMemorySmall) {
  const JoinedReads how = {.limits = {.largest_read = 20}, .most_memory = 30};
  EXPECT_THAT(ReadsOf({{0, 15}, {15, 5}, {40, 20}, {80, 20}}, how),
              ElementsAre(Read(0, 20), Read(40, 20), Read(80, 20)));
}

}  // namespace
}  // namespace haulway
