#include "testing/source_suite.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>
#include <thread>
#include <vector>

namespace haulway::test {

// A module without sources of its own has no cases.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SourceSuite);

namespace {

constexpr size_t kSize = 300'007;
constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();

std::string ReadText(const ByteSource& source, uint64_t offset, size_t length,
                     Status* status) {
  std::string out(length, '?');
  *status = source.ReadAt(offset, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

std::string NameOf(const ::testing::TestParamInfo<SourceCase>& info) {
  return info.param.name;
}

std::string SourceSuite::Pattern(size_t size) {
  std::string bytes(size, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

TEST_P(SourceSuite, HasTheSizeAndANameOfItsBytes) {
  const auto source = Make(Pattern(kSize));
  EXPECT_EQ(source->size(), kSize);
  EXPECT_FALSE(source->name().empty());
}

TEST_P(SourceSuite, ReadsExactlyWhatIsAskedFor) {
  const std::string bytes = Pattern(kSize);
  const auto source = Make(bytes);
  struct Range {
    uint64_t offset;
    size_t length;
  };
  for (const Range range :
       {Range{0, kSize}, Range{0, 1}, Range{kSize - 1, 1}, Range{4095, 2},
        Range{65536, 131072}, Range{123, 0}, Range{kSize, 0}}) {
    Status status;
    EXPECT_EQ(ReadText(*source, range.offset, range.length, &status),
              bytes.substr(range.offset, range.length))
        << range.length << " bytes at " << range.offset;
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(SourceSuite, TouchesNoByteBesideTheOnesAskedFor) {
  const std::string bytes = Pattern(100);
  const auto source = Make(bytes);
  std::string out(20, '?');
  ASSERT_TRUE(
      source->ReadAt(50, std::as_writable_bytes(std::span(out)).subspan(5, 10))
          .ok());
  EXPECT_EQ(out, "?????" + bytes.substr(50, 10) + "?????");
}

TEST_P(SourceSuite, ARangePastTheEndIsTruncated) {
  const auto source = Make(Pattern(1000));
  for (const uint64_t offset :
       {uint64_t{991}, uint64_t{1000}, uint64_t{1001}, kHuge - 9, kHuge - 4,
        kHuge, uint64_t{1} << 63, uint64_t{1} << 62}) {
    Status status;
    ReadText(*source, offset, 10, &status);
    EXPECT_EQ(status.code(), Code::kTruncated) << offset;
  }
  Status status;
  ReadText(*source, 1001, 0, &status);
  EXPECT_EQ(status.code(), Code::kTruncated) << "empty, but past the end";
}

TEST_P(SourceSuite, ReadsOnAfterAFailure) {
  const std::string bytes = Pattern(1000);
  const auto source = Make(bytes);
  Status status;
  ReadText(*source, 995, 10, &status);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(ReadText(*source, 990, 10, &status), bytes.substr(990));
  EXPECT_TRUE(status.ok()) << status.message();
}

TEST_P(SourceSuite, AnEmptySourceHasNothingToRead) {
  const auto source = Make("");
  EXPECT_EQ(source->size(), 0u);
  EXPECT_TRUE(source->ReadAt(0, {}).ok());
  Status status;
  ReadText(*source, 0, 1, &status);
  EXPECT_EQ(status.code(), Code::kTruncated);
  EXPECT_TRUE(source->ReadMany({}).ok());
}

TEST_P(SourceSuite, ReadManyTakesAnyOrderOverlapAndEmptyRanges) {
  const std::string bytes = Pattern(kSize);
  const auto source = Make(bytes);
  struct Range {
    uint64_t offset;
    size_t length;
  };
  const std::vector<Range> ranges = {{200'000, 5000}, {0, 10},       {5, 10},
                                     {kSize, 0},      {199'999, 3},  {0, kSize},
                                     {77, 0},         {kSize - 1, 1}};
  std::vector<std::string> outs;
  for (const Range& range : ranges) outs.emplace_back(range.length, '?');
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < ranges.size(); ++i) {
    requests.push_back(
        {ranges[i].offset, std::as_writable_bytes(std::span(outs[i]))});
  }
  const Status status = source->ReadMany(requests);
  ASSERT_TRUE(status.ok()) << status.message();
  for (size_t i = 0; i < ranges.size(); ++i) {
    EXPECT_EQ(outs[i], bytes.substr(ranges[i].offset, ranges[i].length)) << i;
  }
}

TEST_P(SourceSuite, ReadManyFailsIfOneOfItsRangesDoes) {
  const auto source = Make(Pattern(1000));
  std::string good(10, '?');
  std::string bad(10, '?');
  const ReadRequest requests[] = {
      {0, std::as_writable_bytes(std::span(good))},
      {995, std::as_writable_bytes(std::span(bad))},
      {20, std::as_writable_bytes(std::span(good))},
  };
  EXPECT_EQ(source->ReadMany(requests).code(), Code::kTruncated);
}

TEST_P(SourceSuite, ManyThreadsReadAtOnce) {
  const std::string bytes = Pattern(kSize);
  const auto source = Make(bytes);
  std::atomic<int> wrong{0};
  {
    std::vector<std::jthread> threads;
    for (uint64_t t = 0; t < 8; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < 200; ++i) {
          const uint64_t offset = (t * 7919 + i * 104'729) % (kSize - 1000);
          Status status;
          const size_t length = 1 + (i * 31 + t) % 1000;
          const std::string text = ReadText(*source, offset, length, &status);
          if (!status.ok() || text != bytes.substr(offset, length)) ++wrong;
        }
      });
    }
  }
  EXPECT_EQ(wrong.load(), 0);
}

TEST_P(SourceSuite, AViewHasTheSameBytesAndOutlivesItsSource) {
  const std::string bytes = Pattern(kSize);
  auto source = Make(bytes);
  auto view = source->View(1000, 5000);
  ASSERT_EQ(view.has_value(), GetParam().has_views);
  if (!view.has_value()) return;
  EXPECT_TRUE(source->View(kSize, 0).has_value()) << "an empty one, at the end";
  source.reset();
  EXPECT_EQ(
      std::string(reinterpret_cast<const char*>(view->data()), view->size()),
      bytes.substr(1000, 5000));
}

TEST_P(SourceSuite, LooksWithoutClaimingWhatIsNotThere) {
  const auto source = Make(Pattern(kSize));
  const ByteRange ranges[] = {
      {0, 1000}, {2000, 0}, {4097, kSize - 4097}, {kSize, 1}, {kHuge, kHuge}};
  const SourceTraits traits = source->Look(ranges);
  EXPECT_EQ(traits.views, GetParam().has_views);
  EXPECT_GE(traits.resident, 0);
  EXPECT_LE(traits.resident, 1);
  EXPECT_GE(traits.parallel, 0);
  EXPECT_EQ(traits.local_file, !traits.file_system.empty());
  EXPECT_EQ(traits.direct, traits.direct_alignment > 0);
  EXPECT_LE(source->Look({}).resident, 1);
}

TEST_P(SourceSuite, ReopensTheSameBytesOrSaysWhyNot) {
  const std::string bytes = Pattern(kSize);
  auto source = Make(bytes);
  const SourceTraits traits = source->Look({});
  for (const IoMode io : {IoMode::kAuto, IoMode::kMmap, IoMode::kPread,
                          IoMode::kDirect, IoMode::kUring}) {
    const auto again = source->Reopen(io);
    const bool must = traits.local_file &&
                      (io != IoMode::kDirect || traits.direct) &&
                      (io != IoMode::kUring || traits.uring);
    EXPECT_TRUE(again.ok() || !must) << Name(io);
    if (!again.ok()) {
      EXPECT_EQ(again.status().code(), Code::kUnsupported);
      EXPECT_NE(again.status().message().find("; of "), std::string_view::npos)
          << again.status().message();
      continue;
    }
    EXPECT_EQ((*again)->size(), kSize);
    EXPECT_EQ((*again)->name(), source->name());
    EXPECT_EQ((*again)->View(0, 1).has_value(), io == IoMode::kMmap);
    Status status;
    EXPECT_EQ(ReadText(**again, 1001, kSize - 1001, &status),
              bytes.substr(1001));
    EXPECT_TRUE(status.ok()) << status.message();
  }
}

TEST_P(SourceSuite, KeepsItsBytesWhenTheCacheIsDropped) {
  const std::string bytes = Pattern(kSize);
  const auto source = Make(bytes);
  const auto view = source->View(0, kSize);
  source->DropCache(0, kSize);
  source->DropCache(5000, 0);
  Status status;
  EXPECT_EQ(ReadText(*source, 0, kSize, &status), bytes);
  if (view.has_value()) {
    EXPECT_EQ(std::memcmp(view->data(), bytes.data(), kSize), 0);
  }
}

}  // namespace haulway::test
