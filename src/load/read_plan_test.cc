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
  std::vector<const StorageInfo*> pointers;
  for (const StorageInfo& storage : storages) pointers.push_back(&storage);
  auto plan = PlanReads(pointers, hole);
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

TEST(ReadPlan, AlignsInMemoryWhatTheFileDoesNot) {
  const ReadPlan plan =
      Plan({Framed(10, 17, 40, 57), Framed(57, 65, 40, 105)}, 1 << 20);
  ASSERT_EQ(plan.extents.size(), 2u);
  EXPECT_EQ(plan.placements[0].payload % 64, 0u);
  EXPECT_EQ(plan.placements[1].payload % 64, 0u);
  EXPECT_EQ(plan.read_bytes, 95u);
}

TEST(ReadPlan, GivesEncodedStoragesRoomToDecode) {
  StorageInfo deflated = Framed(0, 64, 100, 164);
  deflated.encoding = Encoding::kDeflate;
  deflated.nbytes = 5000;
  const ReadPlan plan = Plan({deflated}, 0);
  EXPECT_GE(plan.placements[0].payload, 164u);
  EXPECT_EQ(plan.placements[0].payload % 64, 0u);
  EXPECT_GE(plan.memory_bytes, plan.placements[0].payload + 5000);
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
  const StorageInfo* pointer = &storage;
  EXPECT_EQ(PlanReads({&pointer, 1}, 0).status().code(), Code::kLimit);
}

TEST(ReadPlan, NothingWantedIsNothingRead) {
  const ReadPlan plan = Plan({}, 0);
  EXPECT_TRUE(plan.extents.empty());
  EXPECT_EQ(plan.memory_bytes, 0u);
}

}  // namespace
}  // namespace haulway
