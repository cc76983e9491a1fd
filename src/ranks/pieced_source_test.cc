#include "ranks/pieced_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "format/flat_reader.h"

namespace haulway::ranks {
namespace {

using testing::HasSubstr;
using Numbers = std::vector<int64_t>;

constexpr int64_t kRows = 6;
constexpr int64_t kColumns = 4;

// A file with one storage.
RankFile FileOf(uint64_t rank, const std::vector<float>& elements) {
  auto buffer = AllocateBuffer(elements.size() * sizeof(float)).value();
  std::memcpy(buffer.mutable_bytes().data(), elements.data(), buffer.size());
  auto reader = std::make_unique<FlatReader>(Format::kTorch,
                                             MakeBufferSource(buffer, "f"));
  const Numbers shape = {static_cast<int64_t>(elements.size())};
  EXPECT_TRUE(reader
                  ->Append({.name = "s",
                            .dtype = DType::kF32,
                            .shape = shape,
                            .offset = 0,
                            .nbytes = buffer.size()})
                  .ok());
  return {"file" + std::to_string(rank), rank, std::move(reader)};
}

// Elements [from, from + sizes) of a tensor of kRows x kColumns that counts up.
std::vector<float> Box(int64_t row, int64_t column, int64_t rows,
                       int64_t columns, bool is_turned = false) {
  std::vector<float> box;
  for (int64_t i = 0; i < (is_turned ? columns : rows); ++i) {
    for (int64_t j = 0; j < (is_turned ? rows : columns); ++j) {
      const int64_t r = row + (is_turned ? j : i);
      const int64_t c = column + (is_turned ? i : j);
      box.push_back(static_cast<float>(r * kColumns + c));
    }
  }
  return box;
}

Piece PieceOf(uint32_t file, Numbers begin, Numbers sizes, Numbers strides) {
  return {file, 0, 0, std::move(begin), std::move(sizes), std::move(strides)};
}

PiecedSource Make(std::vector<RankFile> files, std::vector<Piece> pieces,
                  std::vector<Piece> replicas = {}) {
  return {std::move(files),
          {{"w",
            sizeof(float),
            {kRows, kColumns},
            std::move(pieces),
            std::move(replicas)}},
          MakeBufferSource(AllocateBuffer(1).value(), "list")};
}

// Reads every range of the tensor.
void ExpectCounts(const PiecedSource& source) {
  const auto whole = Box(0, 0, kRows, kColumns);
  const auto bytes = std::as_bytes(std::span(whole));
  for (size_t from = 0; from < bytes.size(); ++from) {
    for (size_t to = from + 1; to <= bytes.size(); ++to) {
      std::vector<std::byte> read(to - from);
      const Status status = source.ReadAt(from, read);
      ASSERT_TRUE(status.ok()) << status.message();
      ASSERT_EQ(std::memcmp(read.data(), bytes.data() + from, read.size()), 0)
          << from << " to " << to;
    }
  }
}

TEST(PiecedSource, PutsRowsTogether) {
  std::vector<RankFile> files;
  files.push_back(FileOf(0, Box(0, 0, 4, kColumns)));
  files.push_back(FileOf(1, Box(4, 0, 2, kColumns)));
  ExpectCounts(Make(std::move(files), {PieceOf(0, {0, 0}, {4, 4}, {4, 1}),
                                       PieceOf(1, {4, 0}, {2, 4}, {4, 1})}));
}

TEST(PiecedSource, PutsColumnsTogether) {
  std::vector<RankFile> files;
  files.push_back(FileOf(0, Box(0, 0, kRows, 3)));
  files.push_back(FileOf(1, Box(0, 3, kRows, 1)));
  ExpectCounts(Make(std::move(files), {PieceOf(0, {0, 0}, {6, 3}, {3, 1}),
                                       PieceOf(1, {0, 3}, {6, 1}, {1, 1})}));
}

TEST(PiecedSource, TurnsTransposedPieces) {
  std::vector<RankFile> files;
  files.push_back(FileOf(0, Box(0, 0, kRows, 2, true)));
  files.push_back(FileOf(1, Box(0, 2, kRows, 2, true)));
  ExpectCounts(Make(std::move(files), {PieceOf(0, {0, 0}, {6, 2}, {1, 6}),
                                       PieceOf(1, {0, 2}, {6, 2}, {1, 6})}));
}

TEST(PiecedSource, ComparesReplicasOfWhatIsRead) {
  const auto make = [](float changed) {
    std::vector<RankFile> files;
    auto other = Box(0, 0, kRows, kColumns);
    files.push_back(FileOf(0, other));
    other[9] = changed;
    files.push_back(FileOf(7, other));
    return Make(std::move(files), {PieceOf(0, {0, 0}, {6, 4}, {4, 1})},
                {PieceOf(1, {0, 0}, {6, 4}, {4, 1})});
  };
  ExpectCounts(make(9));
  const PiecedSource source = make(-1);
  std::vector<std::byte> bytes(9 * sizeof(float));
  EXPECT_TRUE(source.ReadAt(0, bytes).ok());
  bytes.resize(10 * sizeof(float));
  const Status status = source.ReadAt(0, bytes);
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_THAT(status.message(),
              HasSubstr("ranks 0 and 7 saved different values of one tensor, "
                        "from element 9 on"));
}

TEST(PiecedSource, RefusesReadsPastItsEnd) {
  std::vector<RankFile> files;
  files.push_back(FileOf(0, Box(0, 0, kRows, kColumns)));
  const PiecedSource source =
      Make(std::move(files), {PieceOf(0, {0, 0}, {6, 4}, {4, 1})});
  std::vector<std::byte> bytes(2);
  EXPECT_EQ(source.ReadAt(source.size() - 1, bytes).code(), Code::kTruncated);
}

}  // namespace
}  // namespace haulway::ranks
