#include "dcp/dcp_item.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/digest.h"
#include "base/zstd.h"

namespace haulway::dcp {
namespace {

using ::testing::HasSubstr;

using ByteVector = std::vector<std::byte>;

constexpr std::string_view kNames[] = {"stream.zstd/1", "stream.zstd/1.3",
                                       "stream.zstd/1"};

// Returns bytes that repeat only after a long while.
ByteVector ContentOf(size_t size) {
  ByteVector content(size);
  uint32_t state = 7;
  for (std::byte& byte : content) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 28);
  }
  return content;
}

ByteVector Packed(const ByteVector& content) { return *CompressZstd(content); }

ByteVector operator+(ByteVector one, const ByteVector& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

ByteVector Of(std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

struct Stored {
  explicit Stored(ByteVector stored, size_t transforms = 1)
      : bytes(std::make_shared<ByteVector>(std::move(stored))),
        file(MakeBufferSource(Buffer(bytes, *bytes, /*writable=*/false))),
        item{0, 0, bytes->size(), std::span(kNames).first(transforms)} {}

  std::shared_ptr<ByteVector> bytes;
  std::shared_ptr<const ByteSource> file;
  StoredItem item;
};

// Decodes an item in pieces of `piece` bytes.
Result<ByteVector> Decode(const Stored& stored, size_t piece,
                          MostDecoded most = {UINT64_MAX}) {
  HAULWAY_ASSIGN(ItemDecoder decoder,
                 ItemDecoder::Open(stored.file, stored.item, most));
  ByteVector all;
  ByteVector part(piece);
  while (true) {
    HAULWAY_ASSIGN(const size_t read, decoder.Read(part));
    all.insert(all.end(), part.begin(), part.begin() + read);
    if (read < part.size()) return all;
  }
}

Status RefusalOf(const Stored& stored, MostDecoded most = {UINT64_MAX}) {
  return Decode(stored, 1000, most).status();
}

TEST(DcpItem, DecodesFramesInPiecesOfAnySize) {
  const ByteVector content = ContentOf(300'000);
  const ByteVector half(content.begin(), content.begin() + 150'000);
  const ByteVector rest(content.begin() + 150'000, content.end());
  const std::vector<Stored> items = {
      Stored(Packed(content)), Stored(Packed(half) + Packed(rest)),
      Stored(Packed({}) + Packed(half) + Packed({}) + Packed(rest) +
             Packed({})),
      Stored(Packed(Packed(half) + Packed(rest)), 2),
      Stored(Packed(Packed(Packed(content))), 3)};
  for (const Stored& item : items) {
    for (const size_t piece : {size_t{7}, size_t{4096}, size_t{1} << 20}) {
      const auto found = Decode(item, piece);
      ASSERT_TRUE(found.ok()) << found.status().message();
      EXPECT_EQ(*found, content);
    }
  }
}

TEST(DcpItem, RefusesBytesAfterTheLastFrame) {
  const ByteVector frame = Packed(ContentOf(1000));
  const Status status = RefusalOf(Stored(frame + Of("junk, no frame")));
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_THAT(status.message(), HasSubstr("follow the item's last"));
  EXPECT_FALSE(RefusalOf(Stored(frame + Of("x"))).ok());
  EXPECT_THAT(RefusalOf(Stored(Of("no frame at all"))).message(),
              HasSubstr("no zstd frame"));
}

TEST(DcpItem, RefusesAFrameThatIsCutAnywhere) {
  const ByteVector frame = Packed(ContentOf(3000));
  for (size_t size = 1; size < frame.size(); ++size) {
    const ByteVector cut(frame.begin(), frame.begin() + size);
    EXPECT_FALSE(RefusalOf(Stored(cut)).ok()) << size;
  }
}

TEST(DcpItem, RefusesMoreThanTheLimit) {
  const Stored item(Packed(ByteVector(1 << 22)));
  EXPECT_LT(item.bytes->size(), 1000u);
  const Status corrupt = RefusalOf(item, {(1 << 22) - 1});
  EXPECT_EQ(corrupt.code(), Code::kCorrupt);
  EXPECT_THAT(corrupt.message(), HasSubstr("more than the 4194303 bytes"));
  EXPECT_EQ(RefusalOf(item, {1000, true}).code(), Code::kLimit);
  EXPECT_TRUE(RefusalOf(item, {1 << 22}).ok());
}

TEST(DcpItem, RefusesABombBetweenTwoTransforms) {
  const ByteVector empty = Packed({});
  ByteVector many;
  while (many.size() <= 2 << 20) {
    many.insert(many.end(), empty.begin(), empty.end());
  }
  EXPECT_GT(many.size(), 2u << 20);
  const Stored item(Packed(many), 2);
  EXPECT_EQ(RefusalOf(item, {1000}).code(), Code::kCorrupt);
}

TEST(DcpItem, ObjectsMayGrowAsMuchAsTheLimitsSay) {
  const ParseLimits limits;
  EXPECT_EQ(MostOfObject({0, 0, 10}, limits).bytes, 16 * kMiB);
  EXPECT_EQ(MostOfObject({0, 0, kMiB}, limits).bytes,
            kMiB * limits.max_inflate_ratio);
  EXPECT_EQ(MostOfObject({0, 0, UINT64_MAX}, limits).bytes,
            limits.max_inflated_bytes);
}

TEST(DcpItem, ACursorReadsAnyRange) {
  const ByteVector content = ContentOf(3'000'000);
  const Stored item(Packed(content));
  for (const bool keeps : {false, true}) {
    ItemCursor cursor(item.file, item.item, {content.size()});
    const auto head = cursor.Head(500);
    ASSERT_TRUE(head.ok());
    EXPECT_TRUE(std::ranges::equal(*head, std::span(content).first(500)));
    cursor.Watch(100, 2'900'000);
    for (const uint64_t at : {2'000'000, 100, 499, 1'999'990, 0, 2'990'000}) {
      ByteVector part(10'000);
      const Status status = cursor.ReadAt(at, part, keeps);
      ASSERT_TRUE(status.ok()) << status.message();
      EXPECT_TRUE(
          std::ranges::equal(part, std::span(content).subspan(at, 10'000)));
    }
    EXPECT_EQ(cursor.kept_bytes() != 0, keeps);
    EXPECT_EQ(*cursor.ReadToEnd(), content.size());
    EXPECT_EQ(cursor.watched_crc32(),
              Crc32(0, std::span(content).subspan(100, 2'900'000)));
    ByteVector past(2);
    EXPECT_FALSE(cursor.ReadAt(content.size() - 1, past).ok());
  }
}

TEST(DcpItem, ADecodedItemIsASource) {
  for (const size_t size : {size_t{0}, size_t{1000}, size_t{6} << 20}) {
    const ByteVector content = ContentOf(size);
    const Stored item(Packed(content));
    const auto source = DecodeItem(item.file, item.item, {size}, "name");
    ASSERT_TRUE(source.ok()) << source.status().message();
    ASSERT_EQ((*source)->size(), size);
    for (const uint64_t at : {size / 2, size_t{0}}) {
      ByteVector part(size - at);
      ASSERT_TRUE((*source)->ReadAt(at, part).ok());
      EXPECT_TRUE(std::ranges::equal(part, std::span(content).subspan(at)));
    }
    ByteVector past(1);
    EXPECT_EQ((*source)->ReadAt(size, past).code(), Code::kTruncated);
  }
}

}  // namespace
}  // namespace haulway::dcp
