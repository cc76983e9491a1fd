#include "ranks/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

#include "ranks/rank_list.h"

namespace haulway::ranks {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Numbers = std::vector<int64_t>;

Placement ShardOf(int64_t dim, int64_t factor = 0) {
  if (factor == 0) return {.kind = PlacementKind::kShard, .dim = dim};
  return {
      .kind = PlacementKind::kStridedShard, .dim = dim, .split_factor = factor};
}

// Returns the indices of the only dimension that a process holds.
Numbers Held(int64_t size, const std::vector<Placement>& placements,
             Numbers sizes, Numbers at) {
  const auto runs =
      RunsOf(Numbers{size}, placements, {std::move(sizes), std::move(at)});
  EXPECT_TRUE(runs.ok()) << runs.status().message();
  Numbers held;
  for (const IndexRun& run : runs.value()[0]) {
    for (int64_t i = 0; i < run.length; ++i) held.push_back(run.begin + i);
  }
  return held;
}

TEST(Placement, ShardsAreChunksAndTheLastOnesMayBeEmpty) {
  EXPECT_THAT(Held(5, {ShardOf(0)}, {4}, {0}), ElementsAre(0, 1));
  EXPECT_THAT(Held(5, {ShardOf(0)}, {4}, {2}), ElementsAre(4));
  EXPECT_THAT(Held(5, {ShardOf(0)}, {4}, {3}), ElementsAre());
  EXPECT_THAT(Held(0, {ShardOf(0)}, {4}, {0}), ElementsAre());
}

TEST(Placement, ASecondCutIsOfWhatTheFirstLeft) {
  EXPECT_THAT(Held(9, {ShardOf(0), ShardOf(0)}, {2, 2}, {0, 1}),
              ElementsAre(3, 4));
  EXPECT_THAT(Held(9, {ShardOf(0), ShardOf(0)}, {2, 2}, {1, 1}),
              ElementsAre(7, 8));
}

TEST(Placement, AStridedShardTakesAPieceOfEachPart) {
  EXPECT_THAT(Held(8, {ShardOf(0, 2)}, {2}, {0}), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(Held(8, {ShardOf(0, 2)}, {2}, {1}), ElementsAre(2, 3, 6, 7));
  // As FSDP and TP together: dimension 0 is cut by TP first.
  EXPECT_THAT(Held(10, {ShardOf(0, 2), ShardOf(0)}, {2, 2}, {1, 1}),
              ElementsAre(8, 9));
}

TEST(Placement, EveryElementIsHeldOnce) {
  for (int64_t size = 0; size < 13; ++size) {
    for (int64_t factor = 0; factor < 4; ++factor) {
      std::multiset<int64_t> all;
      for (int64_t i = 0; i < 3; ++i) {
        for (int64_t j = 0; j < 2; ++j) {
          const Numbers held =
              Held(size, {ShardOf(0, factor), ShardOf(0)}, {3, 2}, {i, j});
          all.insert(held.begin(), held.end());
        }
      }
      ASSERT_EQ(all.size(), static_cast<size_t>(size));
      for (int64_t i = 0; i < size; ++i) EXPECT_EQ(all.count(i), 1u);
    }
  }
}

TEST(Placement, CutsTheLargestDimensionThereIs) {
  constexpr int64_t kLast = INT64_MAX;
  constexpr int64_t kHalf = int64_t{1} << 62;
  const auto runs = [](int64_t factor, int64_t at) {
    return RunsOf(Numbers{kLast}, std::vector{ShardOf(0, factor)}, {{2}, {at}})
        .value()[0];
  };
  EXPECT_THAT(runs(0, 0), ElementsAre(IndexRun{0, kHalf}));
  EXPECT_THAT(runs(0, 1), ElementsAre(IndexRun{kHalf, kHalf - 1}));
  EXPECT_THAT(runs(2, 1),
              ElementsAre(IndexRun{kHalf / 2, kHalf / 2},
                          IndexRun{kHalf + kHalf / 2, kHalf / 2 - 1}));
}

TEST(Placement, RefusesWhatHasNoMeaning) {
  const auto refused = [](const std::vector<Placement>& placements) {
    return std::string(
        RunsOf(Numbers{4}, placements, {{2}, {0}}).status().message());
  };
  EXPECT_THAT(refused({{.kind = PlacementKind::kPartial, .reduce_op = "sum"}}),
              HasSubstr("P(sum) is a term of a sum"));
  EXPECT_THAT(refused({ShardOf(1)}), HasSubstr("lacks"));
  EXPECT_THAT(refused({}), HasSubstr("0 placements: expected 1"));
  // Work is bounded, whatever the file says.
  const auto many =
      RunsOf(Numbers{int64_t{1} << 40},
             std::vector{ShardOf(0, int64_t{1} << 39)}, {{2}, {0}});
  EXPECT_EQ(many.status().code(), Code::kLimit);
}

// Returns the coordinates of a process in the mesh (shape:stride) of `world`.
Numbers At(Numbers shape, Numbers strides, int64_t world, int64_t rank) {
  Numbers ranks(static_cast<size_t>(world));
  std::iota(ranks.begin(), ranks.end(), 0);
  ProcessMesh mesh;
  mesh.has_layout = true;
  for (size_t d = 0; d < shape.size(); ++d) {
    mesh.axes.push_back({{shape[d]}, {strides[d]}});
  }
  const auto place = PlaceIn(mesh, ranks, Numbers{world}, rank);
  EXPECT_TRUE(place.ok()) << place.status().message();
  return place.ok() ? place->at : Numbers();
}

TEST(Placement, ALayoutIsRowMajor) {
  EXPECT_THAT(At({2, 2}, {2, 1}, 4, 3), ElementsAre(1, 1));
  EXPECT_THAT(At({2, 2}, {2, 1}, 4, 1), ElementsAre(0, 1));
}

TEST(Placement, ASubMeshIsTheTranslateWithTheProcess) {
  EXPECT_THAT(At({2}, {2}, 4, 1), ElementsAre(0));
  EXPECT_THAT(At({2}, {2}, 4, 3), ElementsAre(1));
  EXPECT_THAT(At({2}, {1}, 4, 2), ElementsAre(0));
  EXPECT_THAT(At({2, 2}, {4, 1}, 8, 7), ElementsAre(1, 1));
  EXPECT_THAT(At({2, 2}, {4, 1}, 8, 6), ElementsAre(1, 0));
}

TEST(Placement, RefusesAxesThatDoNotDivideTheProcesses) {
  const Numbers ranks = {0, 1, 2, 3};
  for (const auto& [size, stride] : std::vector<std::pair<int64_t, int64_t>>{
           {3, 1}, {2, 3}, {5, 1}, {0, 1}, {2, int64_t{1} << 62}, {4, 4}}) {
    ProcessMesh mesh;
    mesh.has_layout = true;
    mesh.axes = {{{size}, {stride}}};
    EXPECT_EQ(PlaceIn(mesh, ranks, Numbers{4}, 0).status().code(),
              Code::kCorrupt)
        << size << ":" << stride;
  }
  EXPECT_EQ(PlaceIn(ProcessMesh(), ranks, Numbers{4}, 9).status().code(),
            Code::kMismatch);
}

TEST(RankList, IsReadAsItWasWritten) {
  const std::vector<std::string> files = {"a_rank_0.pt", "b\n.pt"};
  const std::string text = EncodeRankList(ListKind::kTorch, files);
  const auto bytes = std::as_bytes(std::span(text));
  EXPECT_TRUE(IsTorchList(bytes));
  EXPECT_FALSE(IsDeepSpeedList(bytes));
  EXPECT_EQ(ParseRankList(bytes).value(), files);
  for (size_t size = 0; size < bytes.size(); ++size) {
    const auto cut = ParseRankList(bytes.first(size));
    EXPECT_TRUE(!cut.ok() || cut->size() < files.size()) << size;
  }
  const std::string other = EncodeRankList(ListKind::kDeepSpeed, files);
  EXPECT_TRUE(IsDeepSpeedList(std::as_bytes(std::span(other))));
}

}  // namespace
}  // namespace haulway::ranks
