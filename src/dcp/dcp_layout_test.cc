#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <vector>

#include "dcp/dcp_metadata.h"

namespace haulway::dcp {
namespace {

using ::testing::HasSubstr;
using Sizes = std::array<int64_t, 2>;

// Builds a tensor "w" of bytes, whose chunks are consecutive in file 0.
class Layout {
 public:
  explicit Layout(Sizes shape) : shape_(shape) {}

  Layout& Add(Sizes offsets, Sizes sizes) {
    places_.push_back({offsets, sizes});
    return *this;
  }

  Metadata Make(uint64_t gap = 0) const {
    Metadata metadata;
    metadata.files = {"__0_0.distcp"};
    uint64_t at = 0;
    for (const Place& place : places_) {
      metadata.chunks.push_back({place.offsets, place.sizes, {0, at, 100}});
      at += 100 + gap;
    }
    StoredTensor& tensor = metadata.tensors.emplace_back();
    tensor.name = "w";
    tensor.shape = shape_;
    tensor.chunk_count = static_cast<uint32_t>(places_.size());
    metadata.entries.push_back({true, 0, {}});
    return metadata;
  }

 private:
  struct Place {
    Sizes offsets;
    Sizes sizes;
  };
  Sizes shape_;
  std::vector<Place> places_;
};

TEST(DcpLayout, TakesGridsAndPinwheels) {
  Layout rows({10, 6});
  rows.Add({0, 0}, {3, 6}).Add({3, 0}, {3, 6}).Add({6, 0}, {4, 6});
  EXPECT_TRUE(CheckLayout(rows.Make()).ok());
  Layout grid({4, 4});
  grid.Add({0, 0}, {2, 2}).Add({2, 2}, {2, 2});
  grid.Add({0, 2}, {2, 2}).Add({2, 0}, {2, 2});
  EXPECT_TRUE(CheckLayout(grid.Make()).ok());
  Layout pinwheel({3, 3});
  pinwheel.Add({0, 0}, {1, 2}).Add({0, 2}, {2, 1}).Add({2, 1}, {1, 2});
  pinwheel.Add({1, 0}, {2, 1}).Add({1, 1}, {1, 1});
  EXPECT_TRUE(CheckLayout(pinwheel.Make()).ok());
}

TEST(DcpLayout, TakesChunksOfNoElementsAnywhere) {
  Layout columns({10, 6});
  columns.Add({0, 0}, {10, 6}).Add({0, 6}, {10, 0}).Add({0, 6}, {10, 0});
  EXPECT_TRUE(CheckLayout(columns.Make()).ok());
}

TEST(DcpLayout, NamesTheHole) {
  Layout rows({10, 6});
  rows.Add({0, 0}, {3, 6}).Add({6, 0}, {4, 6});
  const Status status = CheckLayout(rows.Make());
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("leave a hole at [3, 0]: expected 60 "
                                          "elements, found 42; in 'w'"));
}

TEST(DcpLayout, NamesBothChunksThatOverlap) {
  Layout rows({10, 6});
  rows.Add({0, 0}, {6, 6}).Add({5, 5}, {5, 1});
  const Status status = CheckLayout(rows.Make());
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(
      status.message(),
      HasSubstr("chunk [5, 5]+[5, 1] overlaps chunk [0, 0]+[6, 6]; in 'w'"));
}

TEST(DcpLayout, AScalarHasOneChunk) {
  Metadata metadata;
  metadata.files = {"__0_0.distcp"};
  metadata.chunks.push_back({{}, {}, {0, 0, 100}});
  StoredTensor& tensor = metadata.tensors.emplace_back();
  tensor.name = "w";
  tensor.chunk_count = 1;
  metadata.entries.push_back({true, 0, {}});
  EXPECT_TRUE(CheckLayout(metadata).ok());
  metadata.chunks.push_back({{}, {}, {0, 100, 100}});
  tensor.chunk_count = 2;
  const Status status = CheckLayout(metadata);
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(),
              HasSubstr("chunk []+[] overlaps chunk []+[]; in 'w'"));
}

TEST(DcpLayout, RefusesItemsThatShareBytes) {
  Layout rows({10, 6});
  rows.Add({0, 0}, {5, 6}).Add({5, 0}, {5, 6});
  const Status status = CheckLayout(rows.Make(/*gap=*/UINT64_MAX));
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("shares bytes with"));
}

TEST(DcpLayout, JoinsWhatRanksSavedApart) {
  Layout first({10, 6});
  first.Add({0, 0}, {5, 6});
  Layout second({10, 6});
  // The second chunk is a replica.
  second.Add({5, 0}, {5, 6}).Add({0, 0}, {5, 6});
  const auto joined = JoinRanks({first.Make(), second.Make()});
  ASSERT_TRUE(joined.ok());
  EXPECT_EQ(joined->chunks.size(), 2U);
  EXPECT_EQ(joined->chunks[1].item.file, 1U);
  EXPECT_TRUE(CheckLayout(*joined).ok());
}

TEST(DcpLayout, RefusesRanksOfAnotherShape) {
  Layout first({10, 6});
  first.Add({0, 0}, {10, 6});
  Layout second({9, 6});
  second.Add({0, 0}, {9, 6});
  const auto joined = JoinRanks({first.Make(), second.Make()});
  ASSERT_FALSE(joined.ok());
  EXPECT_THAT(joined.status().message(), HasSubstr("another type or shape"));
}

}  // namespace
}  // namespace haulway::dcp
