#include "load/read_plan.h"

#include <gtest/gtest.h>

#include <vector>

namespace haulway {
namespace {

StorageInfo Framed(uint64_t frame, uint64_t offset, uint64_t bytes,
                   uint64_t end) {
  StorageInfo storage;
  storage.frame_offset = frame;
  storage.offset = offset;
  storage.nbytes = storage.stored_bytes = bytes;
  storage.frame_end = end;
  return storage;
}

ReadPlan Plan(const std::vector<StorageInfo>& storages, uint64_t hole) {
  std::vector<WantedStorage> wanted;
  for (const StorageInfo& storage : storages) wanted.push_back({&storage});
  auto plan = PlanReads(wanted, hole);
  EXPECT_TRUE(plan.ok());
  return std::move(plan).value();
}

TEST(ReadPlan, ReadsNeighboursTogetherAndKeepsTheirAlignment) {
  const ReadPlan plan =
      Plan({Framed(379, 448, 12, 476), Framed(476, 576, 100, 692)}, 0);
  ASSERT_EQ(plan.extents.size(), 1u);
  EXPECT_EQ(plan.extents[0].source_offset, 379u);
  EXPECT_EQ(plan.extents[0].length, 692u - 379u);
  EXPECT_EQ(plan.read_bytes, 692u - 379u);
  EXPECT_EQ(plan.placements[0].payload % 64, 0u);
  EXPECT_EQ(plan.placements[1].payload - plan.placements[0].payload, 128u);
  EXPECT_EQ(plan.placements[1].payload - plan.placements[1].frame, 100u);
}

TEST(ReadPlan, JoinsOverAHoleUpToTheLargestAndNoFurther) {
  const std::vector<StorageInfo> storages = {Framed(0, 64, 64, 128),
                                             Framed(1128, 1152, 64, 1216)};
  EXPECT_EQ(Plan(storages, 1000).extents.size(), 1u);
  EXPECT_EQ(Plan(storages, 999).extents.size(), 2u);
}

TEST(ReadPlan, ReadsInSourceOrderWhateverTheRequestsOrder) {
  const ReadPlan plan =
      Plan({Framed(4096, 4096, 64, 4160), Framed(0, 0, 64, 64)}, 0);
  ASSERT_EQ(plan.extents.size(), 2u);
  EXPECT_EQ(plan.extents[0].source_offset, 0u);
  EXPECT_LT(plan.placements[1].payload, plan.placements[0].payload);
}

StorageInfo Floats(uint64_t offset, uint64_t bytes) {
  StorageInfo storage = Framed(offset, offset, bytes, offset + bytes);
  storage.dtype = DType::kF32;
  return storage;
}

TEST(ReadPlan, JoinsWhatIsAlignedToItsDtypeAndNoMore) {
  const ReadPlan plan = Plan({Floats(8, 40), Floats(48, 4), Floats(52, 8)}, 0);
  ASSERT_EQ(plan.extents.size(), 1u);
  EXPECT_EQ(plan.extents[0].memory_offset % 64, 8u) << "as in the source";
  EXPECT_EQ(plan.read_bytes, 52u);
}

TEST(ReadPlan, AlignsInMemoryWhatTheFileDoesNot) {
  // The first two are misaligned by the same number, so they move together. The
  // third is misaligned by another number.
  const ReadPlan plan =
      Plan({Floats(17, 40), Floats(57, 8), Floats(66, 40)}, 1 << 20);
  ASSERT_EQ(plan.extents.size(), 2u);
  EXPECT_EQ(plan.placements[0].payload % 64, 0u);
  EXPECT_EQ(plan.placements[1].payload - plan.placements[0].payload, 40u);
  EXPECT_EQ(plan.placements[2].payload % 64, 0u);
  EXPECT_EQ(plan.read_bytes, 88u);
}

TEST(ReadPlan, LargeExtentsKeepTheirPlaceModuloAPage) {
  const ReadPlan plan = Plan({Floats(100, 1 << 20), Floats(9 << 20, 64)}, 0);
  ASSERT_EQ(plan.extents.size(), 2u);
  EXPECT_EQ(plan.extents[0].memory_offset % 4096, 100u);
  EXPECT_EQ(plan.extents[1].memory_offset % 64, 0u);
  EXPECT_LT(plan.extents[1].memory_offset, (1u << 20) + 100 + 64);
}

TEST(ReadPlan, StagesWhatIsEncodedAndKeepsApartWhatIsAsked) {
  StorageInfo deflated = Framed(0, 64, 100, 164);
  deflated.encoding = Encoding::kDeflate;
  deflated.nbytes = 5000;
  const StorageInfo alone = Framed(164, 192, 64, 256);
  const StorageInfo joined = Framed(256, 320, 64, 384);
  const WantedStorage wanted[] = {{&deflated}, {&alone, true}, {&joined}};
  const auto plan = PlanReads(wanted, 1 << 20);
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->placements[0].route, Route::kStaged);
  EXPECT_EQ(plan->placements[0].payload % 64, 0u);
  EXPECT_EQ(plan->placements[1].route, Route::kAlone);
  EXPECT_GE(plan->placements[1].frame, 5000u);
  EXPECT_EQ(plan->placements[2].route, Route::kJoined);
  ASSERT_EQ(plan->extents.size(), 1u);
  EXPECT_EQ(plan->extents[0].source_offset, 256u);
  EXPECT_EQ(plan->read_bytes, 384u);
}

TEST(ReadPlan, TwoStoragesOverTheSameBytesAreReadOnce) {
  const ReadPlan plan =
      Plan({Framed(0, 64, 64, 128), Framed(0, 64, 64, 128)}, 0);
  EXPECT_EQ(plan.read_bytes, 128u);
  EXPECT_EQ(plan.placements[0].payload, plan.placements[1].payload);
}

TEST(ReadPlan, RefusesSizesThatOverflow) {
  StorageInfo storage = Framed(0, 64, 64, 128);
  storage.encoding = Encoding::kDeflate;
  storage.nbytes = ~uint64_t{0};
  const WantedStorage wanted{&storage};
  EXPECT_EQ(PlanReads({&wanted, 1}, 0).status().code(), Code::kLimit);
}

constexpr RequestLimits kLimits{
    .largest_request = 1 << 20, .largest_hole = 4096, .job_bytes = 1 << 20};

TEST(CutRequests, CutsAtPagesOfTheSource) {
  const Extent extent{100, 4196, 3 << 20};
  const RequestPlan plan = CutRequests({&extent, 1}, kLimits);
  ASSERT_EQ(plan.requests.size(), 4u);
  uint64_t at = 100;
  for (const PlannedRequest& request : plan.requests) {
    EXPECT_EQ(request.offset, at);
    EXPECT_LE(request.length, 1u << 20);
    at += request.length;
    EXPECT_EQ(plan.parts[request.first_part].memory_offset,
              request.offset + 4096);
    EXPECT_TRUE(at % 4096 == 0 || &request == &plan.requests.back());
  }
  EXPECT_EQ(at, 100u + (3 << 20));
}

TEST(CutRequests, LeavesNoSmallRest) {
  const Extent extent{77, 4096, (1 << 20) + 300};
  const RequestPlan plan = CutRequests({&extent, 1}, kLimits);
  ASSERT_EQ(plan.requests.size(), 2u);
  EXPECT_NEAR(static_cast<double>(plan.requests[0].length),
              static_cast<double>(plan.requests[1].length), 2 * 4096);
}

TEST(CutRequests, CutsPagesFromAnyOffset) {
  for (const uint64_t offset : {0, 1, 100, 4095, 4096}) {
    for (const uint64_t length : {4096, 4097, 5000, 8191, 8192, 12'289}) {
      const Extent extent{offset, 0, length};
      const RequestPlan plan = CutRequests(
          {&extent, 1},
          {.largest_request = 4096, .largest_hole = 0, .job_bytes = 4096});
      uint64_t at = offset;
      for (const PlannedRequest& request : plan.requests) {
        ASSERT_EQ(request.offset, at);
        ASSERT_GT(request.length, 0u);
        ASSERT_LE(request.length, 4096u);
        at += request.length;
        ASSERT_TRUE(at % 4096 == 0 || at == offset + length);
      }
      ASSERT_EQ(at, offset + length);
    }
  }
}

TEST(CutRequests, GathersSmallExtentsThatAreClose) {
  const Extent extents[] = {
      {0, 64, 10},       {20, 128, 10},          {4126, 192, 10},
      {10'000, 256, 10}, {20'000, 320, 1 << 16}, {90'000, 70'000, 5}};
  const RequestPlan plan = CutRequests(extents, kLimits);
  ASSERT_EQ(plan.requests.size(), 4u);
  EXPECT_EQ(plan.requests[0].parts, 3u);
  EXPECT_EQ(plan.requests[0].length, 4136u);
  EXPECT_EQ(plan.requests[1].parts, 1u);
  EXPECT_EQ(plan.requests[2].parts, 1u);
  EXPECT_EQ(plan.requests[3].offset, 90'000u);
  ASSERT_EQ(plan.jobs.size(), 1u);
  EXPECT_EQ(plan.jobs[0].requests, 4u);
}

// Different frame lengths change the distances between payloads in memory.
TEST(CutRequests, GathersWhatIsToldToBeSmall) {
  const Extent extents[] = {{0, 0, 300'000},
                            {300'000, 300'032, 300'000},
                            {600'000, 600'064, 600'000}};
  EXPECT_EQ(CutRequests(extents, kLimits).requests.size(), 3u);
  RequestLimits far = kLimits;
  far.smallest_straight = far.most_gathered = far.largest_request;
  const RequestPlan plan = CutRequests(extents, far);
  ASSERT_EQ(plan.requests.size(), 2u);
  EXPECT_EQ(plan.requests[0].parts, 2u);
  EXPECT_EQ(plan.requests[1].length, 600'000u);
}

TEST(CutRequests, SharesManyTinyRequestsAmongJobs) {
  std::vector<Extent> extents;
  for (uint64_t i = 0; i < 1000; ++i) {
    extents.push_back({i * 100'000, i * 64, 10});
  }
  const RequestPlan plan = CutRequests(extents, kLimits);
  EXPECT_EQ(plan.requests.size(), 1000u);
  EXPECT_EQ(plan.jobs.size(), 16u);
}

TEST(ReadPlan, NothingWantedIsNothingRead) {
  const ReadPlan plan = Plan({}, 0);
  EXPECT_TRUE(plan.extents.empty());
  EXPECT_EQ(plan.memory_bytes, 0u);
}

}  // namespace
}  // namespace haulway
