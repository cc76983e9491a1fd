#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "base/checked.h"
#include "base/cursor.h"
#include "base/digest.h"
#include "base/hash.h"
#include "base/name_index.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"

namespace haulway {
namespace {

constexpr uint64_t kMax = std::numeric_limits<uint64_t>::max();

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Checked, RefusesWhatOverflows) {
  uint64_t result = 0;
  EXPECT_TRUE(CheckedAdd(kMax - 1, 1, &result));
  EXPECT_EQ(result, kMax);
  EXPECT_FALSE(CheckedAdd(kMax, 1, &result));
  EXPECT_FALSE(CheckedMultiply(uint64_t{1} << 32, uint64_t{1} << 32, &result));
  EXPECT_FALSE(CheckedRoundUp(kMax, 64, &result));
  EXPECT_TRUE(CheckedRoundUp(65, 64, &result));
  EXPECT_EQ(result, 128u);
}

TEST(Checked, RangeFitsDoesNotWrap) {
  EXPECT_TRUE(RangeFits(4, 6, 10));
  EXPECT_TRUE(RangeFits(10, 0, 10));
  EXPECT_FALSE(RangeFits(4, 7, 10));
  EXPECT_FALSE(RangeFits(kMax, 2, 10));
  EXPECT_FALSE(RangeFits(2, kMax, 10));
}

TEST(ByteCursor, ReadsLittleEndianAndStopsAtTheEnd) {
  ByteCursor cursor(Bytes("\x01\x02\x03\x04\x05\x06\x07"));
  EXPECT_EQ(cursor.U16(), 0x0201);
  EXPECT_EQ(cursor.U32(), 0x06050403u);
  EXPECT_EQ(cursor.remaining(), 1u);
  EXPECT_EQ(cursor.U16(), 0);
  EXPECT_FALSE(cursor.ok());
  EXPECT_EQ(cursor.U8(), 0) << "a failure is sticky";
}

TEST(ByteCursor, RefusesALengthThatWouldWrap) {
  ByteCursor cursor(Bytes("abc"));
  cursor.Skip(1);
  EXPECT_TRUE(cursor.Bytes(kMax).empty());
  EXPECT_FALSE(cursor.ok());
}

TEST(Digest, MatchesTheCheckValueOfTheStandard) {
  EXPECT_EQ(Crc32(0, Bytes("123456789")), 0xCBF43926u);
  EXPECT_EQ(Crc32(0, {}), 0u);
}

TEST(Digest, IsTheSameForEveryLengthAndStart) {
  std::vector<std::byte> bytes(5000);
  uint32_t state = 1;
  for (std::byte& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<std::byte>(state >> 24);
  }
  for (const size_t start : {0, 1, 37}) {
    uint32_t expected = 0;  // Computed bit by bit.
    for (size_t length = 0; start + length < bytes.size(); ++length) {
      ASSERT_EQ(Crc32(0, std::span(bytes).subspan(start, length)), expected)
          << length << " from " << start;
      expected = ~expected ^ static_cast<uint32_t>(bytes[start + length]);
      for (int bit = 0; bit < 8; ++bit) {
        expected = (expected >> 1) ^ ((expected & 1) != 0 ? 0xEDB88320 : 0);
      }
      expected = ~expected;
    }
    const auto all = std::span(bytes).subspan(start);
    for (size_t cut = 0; cut <= all.size(); cut += 111) {
      ASSERT_EQ(Crc32(Crc32(0, all.first(cut)), all.subspan(cut)),
                Crc32(0, all))
          << cut;
    }
  }
}

TEST(Digest, JoinsPiecesOfAnyLength) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7);
  const uint32_t whole = Crc32(0, Bytes(text));
  for (const size_t cut : {size_t{0}, size_t{1}, size_t{63}, size_t{512},
                           size_t{999}, size_t{1000}}) {
    const auto first = Bytes(text).subspan(0, cut);
    const auto rest = Bytes(text).subspan(cut);
    EXPECT_EQ(Crc32Join(Crc32(0, first), Crc32(0, rest), rest.size()), whole)
        << cut;
    EXPECT_EQ(Crc32(Crc32(0, first), rest), whole) << cut;
  }
}

TEST(Text, HexIsTwoDigitsPerByte) {
  EXPECT_EQ(Hex({}), "");
  EXPECT_EQ(Hex(std::vector{std::byte{0}, std::byte{0x0F}, std::byte{0xA5}}),
            "000fa5");
}

TEST(Text, QuotesAndCutsAndEscapes) {
  EXPECT_EQ(Quote("wte.weight"), "'wte.weight'");
  EXPECT_EQ(Quote("a\x1b[31m'\\"), "'a\\x1b[31m\\'\\\\'");
  EXPECT_EQ(Quote("\xff\xc2\x85"), "'\\xff\\xc2\\x85'");
  EXPECT_EQ(Quote("\xc3\xa9"), "'\xc3\xa9'");
  const std::string cut = Quote(std::string(65, 'x'));
  EXPECT_EQ(cut, "'" + std::string(64, 'x') + "'...");
}

TEST(Text, KnowsUtf8) {
  EXPECT_TRUE(IsUtf8("a\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
  EXPECT_FALSE(IsUtf8("\xc0\x80")) << "overlong";
  EXPECT_FALSE(IsUtf8("\xe2\x82")) << "cut";
  EXPECT_FALSE(IsUtf8("\xf4\x90\x80\x80")) << "past U+10FFFF";
  EXPECT_FALSE(IsUtf8("\xed\xa0\x80"));
  EXPECT_TRUE(IsUtf8("\xed\xa0\x80", /*surrogates=*/true));
}

TEST(HashText, DependsOnTheSeedAndOnEveryByte) {
  const std::string text = "model.layers.0.attention.weight";
  const uint64_t hash = HashText(text, 1);
  EXPECT_EQ(HashText(text, 1), hash);
  EXPECT_NE(HashText(text, 2), hash);
  for (size_t i = 0; i < text.size(); ++i) {
    std::string other = text;
    other[i] = static_cast<char>(other[i] ^ 1);
    EXPECT_NE(HashText(other, 1), hash) << i;
  }
  EXPECT_NE(HashText(text + std::string(1, '\0'), 1), hash);
  EXPECT_EQ(ProcessSeed(), ProcessSeed());
  EXPECT_NE(ProcessSeed(), 0U);
}

// The first word of these names cancels the initial state of an unseeded hash,
// so that all names would have the same hash.
TEST(HashText, NamesMadeToCollideWithoutASeedDoNot) {
  std::vector<uint64_t> hashes;
  for (uint64_t i = 0; i < 20'000; ++i) {
    const uint64_t words[] = {24 * kMix1, i, 0};
    std::string name(24, '\0');
    std::memcpy(name.data(), words, sizeof(words));
    hashes.push_back(HashText(name, ProcessSeed()) & 0xFFFFFFFF);
  }
  std::ranges::sort(hashes);
  const auto repeats = std::ranges::unique(hashes);
  EXPECT_LT(repeats.size(), 10U);
}

TEST(NameIndex, FindsWhatWasAddedAndReportsRepeats) {
  std::vector<std::string> names;
  for (int i = 0; i < 5000; ++i) names.push_back("name" + std::to_string(i));
  const auto name_of = [&](uint32_t i) -> std::string_view { return names[i]; };
  NameIndex index;
  for (uint32_t i = 0; i < names.size(); ++i) {
    EXPECT_EQ(index.Add(names[i], i, name_of), NameIndex::kNone);
  }
  EXPECT_EQ(index.Add("name7", 9999, name_of), 7u);
  EXPECT_EQ(index.Find("name4999", name_of), 4999u);
  EXPECT_EQ(index.Find("nam", name_of), NameIndex::kNone);
  EXPECT_EQ(NameIndex().Find("x", name_of), NameIndex::kNone);
}

TEST(ParallelFor, RunsEveryIndexOnce) {
  std::vector<std::atomic<int>> runs(1000);
  EXPECT_TRUE(ParallelFor(runs.size(), 4, [&](uint64_t i) {
                ++runs[i];
                return Status();
              }).ok());
  for (const auto& count : runs) EXPECT_EQ(count.load(), 1);
}

TEST(ParallelFor, ReturnsTheLowestFailureAndStartsNoMore) {
  std::atomic<int> started{0};
  const Status status = ParallelFor(1000000, 2, [&](uint64_t i) -> Status {
    ++started;
    if (i >= 10) return Status(Code::kCorrupt, std::to_string(i));
    return Status();
  });
  EXPECT_EQ(status.message(), "10");
  EXPECT_LT(started.load(), 100);
}

TEST(Posix, ReadFullySaysHowMuchWasThere) {
  char path[] = "/tmp/haulway_base_test_XXXXXX";
  const int fd = ::mkstemp(path);
  ASSERT_GE(fd, 0);
  UniqueFd owner(fd);
  std::remove(path);
  FILE* file = ::fdopen(::dup(fd), "w");
  std::fputs("0123456789", file);
  std::fclose(file);

  std::vector<std::byte> out(4);
  EXPECT_TRUE(ReadFully(fd, 6, out).ok());
  EXPECT_EQ(out[3], std::byte{'9'});
  const Status cut = ReadFully(fd, 8, out);
  EXPECT_EQ(cut.code(), Code::kTruncated);
  EXPECT_EQ(cut.message(),
            "file ends early: expected 4 bytes, found 2; at byte 10");
}

TEST(Posix, WriteFullyWritesEveryPartAtItsPlace) {
  const auto file = OpenNameless("/tmp");
  ASSERT_TRUE(file.ok()) << file.status().message();
  std::vector<std::byte> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<std::byte>(i * 7 + i / 256);
  }
  const std::span<const std::byte> all = bytes;
  const std::vector<std::span<const std::byte>> parts = {
      all.first(1), all.subspan(1, 0), all.subspan(1, 63), all.subspan(64, 200),
      all.subspan(264)};
  for (const uint64_t at_once : {1, 3, 64, 1000, 4096}) {
    for (const uint64_t offset : {0, 1, 63, 64, 65}) {
      ASSERT_TRUE(WriteFully(file->get(), offset, parts, at_once).ok());
      std::vector<std::byte> read(bytes.size());
      ASSERT_TRUE(ReadFully(file->get(), offset, read).ok());
      EXPECT_EQ(read, bytes) << at_once << " from " << offset;
      ASSERT_EQ(::ftruncate(file->get(), 0), 0);
    }
  }
}

TEST(Posix, OpenNamesThePath) {
  const auto opened = OpenForReading("/nonexistent/x.pt");
  EXPECT_EQ(opened.status().code(), Code::kNotFound);
  EXPECT_NE(opened.status().message().find("'/nonexistent/x.pt'"),
            std::string_view::npos);
}

}  // namespace
}  // namespace haulway
