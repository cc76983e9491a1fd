#include "delta/change.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "testing/zstd_frames.h"

namespace haulway::delta {
namespace {

using test::Compress;
using ::testing::HasSubstr;
using Bytes = std::vector<std::byte>;

Bytes Noise(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  Bytes bytes(size);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

// A tensor before and after a change.
struct Pair {
  Bytes before;
  Bytes after;
};

Pair Changed(size_t size, uint32_t seed) {
  Pair pair{Noise(size, seed), {}};
  pair.after = pair.before;
  std::mt19937 random(seed);
  for (size_t i = 0; i < size; i += 1 + random() % 40) {
    pair.after[i] ^= std::byte{1};
  }
  return pair;
}

Bytes Xor(const Pair& pair) {
  Bytes mask(pair.before.size());
  for (size_t i = 0; i < mask.size(); ++i) {
    mask[i] = pair.before[i] ^ pair.after[i];
  }
  return mask;
}

void Append(uint32_t number, Bytes* bytes) {
  for (int i = 0; i < 4; ++i) {
    bytes->push_back(static_cast<std::byte>(number >> (8 * i)));
  }
}

Bytes Overwrite(const Pair& pair) {
  std::vector<uint32_t> positions;
  for (size_t i = 0; i < pair.before.size(); ++i) {
    if (pair.before[i] != pair.after[i]) {
      positions.push_back(static_cast<uint32_t>(i));
    }
  }
  Bytes content;
  Append(static_cast<uint32_t>(positions.size()), &content);
  for (const uint32_t at : positions) Append(at, &content);
  for (const uint32_t at : positions) content.push_back(pair.after[at]);
  return content;
}

Bytes ContentOf(Change change, const Pair& pair) {
  return change == Change::kXor ? Xor(pair) : Overwrite(pair);
}

class ChangeTest : public testing::TestWithParam<Change> {};
INSTANTIATE_TEST_SUITE_P(All, ChangeTest,
                         testing::Values(Change::kXor, Change::kOverwrite));

TEST_P(ChangeTest, GivesTheNewBytes) {
  for (const size_t size : {1, 7, 64, 4096, 200'001}) {
    const Pair pair = Changed(size, 1);
    for (const test::FrameOptions& options :
         {test::FrameOptions{}, test::FrameOptions{.level = 19},
          test::FrameOptions{
              .level = 3, .has_size = false, .has_checksum = true}}) {
      const Bytes frame = Compress(ContentOf(GetParam(), pair), options);
      Bytes bytes = pair.before;
      Checksum found(ChecksumKind::kXxh3);
      ASSERT_TRUE(ApplyChange(GetParam(), frame, bytes, &found).ok()) << size;
      EXPECT_EQ(bytes, pair.after);
      Checksum expected(ChecksumKind::kXxh3);
      expected.Update(pair.after);
      EXPECT_EQ(found.Finish(), expected.Finish());
    }
  }
}

TEST_P(ChangeTest, RefusesAFrameThatIsCutAnywhere) {
  const Pair pair = Changed(3000, 2);
  const Bytes frame = Compress(ContentOf(GetParam(), pair));
  for (size_t length = 0; length < frame.size(); ++length) {
    Bytes bytes = pair.before;
    const Bytes cut(frame.begin(), frame.begin() + length);
    EXPECT_FALSE(ApplyChange(GetParam(), cut, bytes, nullptr).ok()) << length;
  }
}

// Either the frame is refused, or the checksum differs.
TEST_P(ChangeTest, NoticesEveryFlippedBit) {
  const Pair pair = Changed(500, 3);
  const Bytes frame = Compress(ContentOf(GetParam(), pair));
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    Bytes flipped = frame;
    flipped[bit / 8] ^= static_cast<std::byte>(1 << (bit % 8));
    Bytes bytes = pair.before;
    Checksum sum(ChecksumKind::kXxh3);
    const Status status = ApplyChange(GetParam(), flipped, bytes, &sum);
    if (!status.ok()) continue;
    Checksum found(ChecksumKind::kXxh3);
    found.Update(bytes);
    EXPECT_EQ(sum.Finish(), found.Finish()) << bit;
  }
}

TEST_P(ChangeTest, RefusesWhatFollows) {
  const Pair pair = Changed(300, 4);
  Bytes frame = Compress(ContentOf(GetParam(), pair));
  Bytes twice = frame;
  twice.insert(twice.end(), frame.begin(), frame.end());
  frame.push_back(std::byte{0});
  for (const Bytes& wrong : {frame, twice}) {
    Bytes bytes = pair.before;
    const Status status = ApplyChange(GetParam(), wrong, bytes, nullptr);
    EXPECT_EQ(status.code(), Code::kCorrupt);
    EXPECT_THAT(std::string(status.message()), HasSubstr("follow"));
  }
}

TEST_P(ChangeTest, RefusesAFrameOfAnotherTensor) {
  for (const bool has_size : {true, false}) {
    for (const size_t size : {299, 301, 5000}) {
      Pair pair = Changed(size, 5);
      if (GetParam() == Change::kOverwrite) pair.after.back() ^= std::byte{2};
      const Bytes frame =
          Compress(ContentOf(GetParam(), pair), {.has_size = has_size});
      Bytes bytes(300);
      const Status status = ApplyChange(GetParam(), frame, bytes, nullptr);
      if (GetParam() == Change::kOverwrite && size < bytes.size()) continue;
      EXPECT_FALSE(status.ok()) << size;
    }
  }
}

TEST(Overwrite, RefusesWrongCountsAndPositions) {
  const auto refused = [](const std::vector<uint32_t>& numbers, size_t values) {
    Bytes content;
    for (const uint32_t number : numbers) Append(number, &content);
    content.resize(content.size() + values);
    Bytes bytes(100);
    return ApplyChange(Change::kOverwrite, Compress(content), bytes, nullptr);
  };
  EXPECT_TRUE(refused({2, 0, 99}, 2).ok());
  EXPECT_TRUE(refused({0}, 0).ok());
  EXPECT_THAT(std::string(refused({2, 0, 100}, 2).message()),
              HasSubstr("position"));
  EXPECT_FALSE(refused({2, 5, 5}, 2).ok());
  EXPECT_FALSE(refused({2, 6, 5}, 2).ok());
  EXPECT_FALSE(refused({101}, 0).ok());
  EXPECT_FALSE(refused({0xFFFFFFFF}, 0).ok());
  EXPECT_FALSE(refused({2, 0, 1}, 1).ok());  // A value is lacking,
  EXPECT_FALSE(refused({2, 0, 1}, 3).ok());  // or one is left over.
}

// The frame states or has gigabytes, which are never decompressed.
TEST(Xor, OfAHugeFrameNeedsLittle) {
  Bytes content(size_t{64} << 20);
  for (const bool has_size : {true, false}) {
    const Bytes frame = Compress(content, {.has_size = has_size});
    Bytes bytes(4096);
    const Status status = ApplyChange(Change::kXor, frame, bytes, nullptr);
    EXPECT_EQ(status.code(), Code::kCorrupt);
  }
}

TEST(Checksums, AreThoseOfTheLibraries) {
  const auto sum = [](ChecksumKind kind, std::string_view text) {
    Checksum sum(kind);
    sum.Update(std::as_bytes(std::span(text)));
    return sum.Finish();
  };
  // From xxhash 4.1.0, blake3 1.0.11 and zlib.
  EXPECT_EQ(sum(ChecksumKind::kXxh3, ""), "99aa06d3014798d86001c324468d497f");
  EXPECT_EQ(sum(ChecksumKind::kBlake3, ""),
            "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262");
  EXPECT_EQ(sum(ChecksumKind::kAdler32, ""), "00000001");
  EXPECT_EQ(sum(ChecksumKind::kBlake3, "abc"),
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85");
  EXPECT_EQ(sum(ChecksumKind::kAdler32, "abc"), "024d0127");
}

// The official test vectors of BLAKE3: bytes that count up to 250, of these
// lengths. https://github.com/BLAKE3-team/BLAKE3, test_vectors.json.
TEST(Checksums, OfBlake3AreThoseOfItsAuthors) {
  const std::pair<size_t, std::string_view> kCases[] = {
      {1, "2d3adedff11b61f14c886e35afa036736dcd87a74d27b5c1510225d0f592e213"},
      {63, "e9bc37a594daad83be9470df7f7b3798297c3d834ce80ba85d6e207627b7db7b"},
      {64, "4eed7141ea4a5cd4b788606bd23f46e212af9cacebacdc7d1f4c6dc7f2511b98"},
      {65, "de1e5fa0be70df6d2be8fffd0e99ceaa8eb6e8c93a63f2d8d1c30ecb6b263dee"},
      {1023,
       "10108970eeda3eb932baac1428c7a2163b0e924c9a9e25b35bba72b28f70bd11"},
      {1024,
       "42214739f095a406f3fc83deb889744ac00df831c10daa55189b5d121c855af7"},
      {1025,
       "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"},
      {2048,
       "e776b6028c7cd22a4d0ba182a8bf62205d2ef576467e838ed6f2529b85fba24a"},
      {2049,
       "5f4d72f40d7a5f82b15ca2b2e44b1de3c2ef86c426c95c1af0b6879522563030"},
      {3072,
       "b98cb0ff3623be03326b373de6b9095218513e64f1ee2edd2525c7ad1e5cffd2"},
      {4097,
       "9b4052b38f1c5fc8b1f9ff7ac7b27cd242487b3d890d15c96a1c25b8aa0fb995"},
      {8192,
       "aae792484c8efe4f19e2ca7d371d8c467ffb10748d8a5a1ae579948f718a2a63"},
      {8193,
       "bab6c09cb8ce8cf459261398d2e7aef35700bf488116ceb94a36d0f5f1b7bc3b"},
      {9217,
       "d42c90aa30bee83ecb52ad31b685d566145649496764878873598cef582d4d8f"},
      {16384,
       "f875d6646de28985646f34ee13be9a576fd515f76b5b0a26bb324735041ddde4"},
      {31744,
       "62b6960e1a44bcc1eb1a611a8d6235b6b4b78f32e7abc4fb4c6cdcce94895c47"},
      {65537,
       "7c99f9840a73dfcb6e5bfe4ff6d1558acab7e015640790c26411818bdbe17eca"},
      {102400,
       "bc3e3d41a1146b069abffad3c0d44860cf664390afce4d9661f7902e7943e085"},
  };
  for (const auto& [length, expected] : kCases) {
    Bytes bytes(length);
    for (size_t i = 0; i < length; ++i) {
      bytes[i] = static_cast<std::byte>(i % 251);
    }
    for (const size_t step : {size_t{1}, size_t{1000}, size_t{8192}, length}) {
      Checksum sum(ChecksumKind::kBlake3);
      for (size_t at = 0; at < length; at += step) {
        sum.Update(std::span(bytes).subspan(at, std::min(step, length - at)));
      }
      EXPECT_EQ(sum.Finish(), expected) << length;
      if (step >= length) break;
    }
  }
}

}  // namespace
}  // namespace haulway::delta
