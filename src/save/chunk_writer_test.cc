#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/digest.h"
#include "haulway/layout.h"
#include "haulway/options.h"

namespace haulway {
namespace {

std::string Noise(uint64_t size, uint64_t seed) {
  std::string bytes(size + sizeof(seed), '\0');
  for (uint64_t i = 0; i < size; i += sizeof(seed)) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    std::memcpy(bytes.data() + i, &seed, sizeof(seed));
  }
  bytes.resize(size);
  return bytes;
}

uint32_t CrcOf(std::string_view text) {
  return Crc32(0, std::as_bytes(std::span<const char>(text)));
}

// A layout of payloads with the given sizes, and gaps of the given sizes before
// each and after the last. A gap contains a text that depends on all CRC-32s
// before it, repeated.
class TestLayout : public Layout {
 public:
  TestLayout(std::vector<uint64_t> gaps, const std::vector<uint64_t>& sizes,
             bool wants_crc32 = true)
      : gaps_(std::move(gaps)), wants_crc32_(wants_crc32) {
    uint64_t at = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
      bytes_.push_back(Noise(sizes[i], i + 1));
      frames_.push_back({at, gaps_[i], Needs::kAll});
      at += gaps_[i];
      payloads_.push_back({at, sizes[i], nullptr});
      at += sizes[i];
    }
    frames_.push_back({at, gaps_.back(), Needs::kAll});
    for (size_t i = 0; i < sizes.size(); ++i) {
      payloads_[i].bytes = reinterpret_cast<const std::byte*>(bytes_[i].data());
    }
    size_ = at + gaps_.back();
  }
  void MakeHole(size_t i) {
    payloads_[i].bytes = nullptr;
    bytes_[i].assign(bytes_[i].size(), '\0');
  }

  // Keeps the bytes, but lets the caller provide them.
  void Withhold(size_t i) {
    payloads_[i].bytes = nullptr;
    withheld_.insert(i);
  }
  // Keeps the bytes, but reads them from sources.
  void PullAll() {
    for (size_t i = 0; i < payloads_.size(); ++i) {
      const auto function = [this, i](uint64_t offset,
                                      std::span<std::byte> out) {
        EXPECT_GE(offset, 5u);
        EXPECT_LE(offset - 5 + out.size(), bytes_[i].size());
        std::ranges::copy(bytes(i).subspan(offset - 5, out.size()),
                          out.begin());
        return pull_fails_ ? Status(Code::kIoError, "pull") : Status();
      };
      sources_.push_back(
          MakeFunctionSource(bytes_[i].size() + 5, function, "payload"));
      payloads_[i].bytes = nullptr;
      payloads_[i].source = sources_.back().get();
      payloads_[i].source_offset = 5;
    }
  }
  void FailToPull() { pull_fails_ = true; }
  std::span<const std::byte> bytes(size_t i) const {
    return std::as_bytes(std::span(bytes_[i]));
  }

  uint64_t size() const override { return size_; }
  std::span<const Payload> payloads() const override { return payloads_; }
  std::span<const Frame> frames() const override { return frames_; }
  Digesting digesting() const override {
    return wants_crc32_ ? Digesting::kCrc32 : Digesting::kNone;
  }
  Status EncodeFrame(size_t gap, const Digests& digests,
                     std::span<std::byte> out) const override {
    EXPECT_EQ(out.size(), gaps_[gap]);
    const auto before = digests.crc32.subspan(0, gap);
    const std::string text = GapText(gap, {before.begin(), before.end()});
    std::memcpy(out.data(), text.data(), out.size());
    return fails_at_ == gap ? Status(Code::kCorrupt, "gap") : Status();
  }
  void FailAt(size_t gap) { fails_at_ = gap; }

  std::string Expected() const {
    std::string file;
    std::vector<uint32_t> crcs;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      file += GapText(i, crcs) + bytes_[i];
      const bool counted =
          wants_crc32_ && (!payloads_[i].is_hole() || withheld_.contains(i));
      crcs.push_back(counted ? CrcOf(bytes_[i]) : 0);
    }
    return file + GapText(bytes_.size(), crcs);
  }

 private:
  std::string GapText(size_t gap, const std::vector<uint32_t>& crcs) const {
    const uint32_t all = Crc32(0, std::as_bytes(std::span(crcs)));
    const std::string once =
        "gap " + std::to_string(gap) + " " + std::to_string(all) + ";";
    std::string text;
    while (text.size() < gaps_[gap]) text += once;
    return text.substr(0, gaps_[gap]);
  }

  const std::vector<uint64_t> gaps_;
  const bool wants_crc32_;
  std::vector<std::string> bytes_;
  std::vector<Payload> payloads_;
  std::vector<Frame> frames_;
  std::vector<std::shared_ptr<const ByteSource>> sources_;
  std::set<size_t> withheld_;
  uint64_t size_ = 0;
  size_t fails_at_ = SIZE_MAX;
  bool pull_fails_ = false;
};

// A sink that accepts writes in any order, unless its traits say otherwise.
class TestSink : public ByteSink {
 public:
  explicit TestSink(SinkTraits traits) : traits_(traits) {}
  std::string_view name() const override { return "test"; }
  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    file.resize(*size, '?');
    return traits_;
  }
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    const std::lock_guard lock(mutex_);
    if (traits_.ordered) {
      EXPECT_EQ(offset, next_);
    }
    for (const auto part : parts) {
      EXPECT_LE(offset + part.size(), file.size());
      std::memcpy(file.data() + offset, part.data(), part.size());
      offset += part.size();
      written += part.size();
    }
    next_ = offset;
    ++writes;
    return writes == fail_at ? Status(Code::kIoError, "full") : Status();
  }
  uint64_t direct_bytes() const override { return direct; }
  Status Commit(uint64_t size) override {
    file.resize(size);
    committed = true;
    return Status();
  }

  std::string file;
  uint64_t written = 0;
  uint64_t direct = 0;
  int writes = 0;
  int fail_at = -1;
  bool committed = false;

 private:
  const SinkTraits traits_;
  std::mutex mutex_;
  uint64_t next_ = 0;
};

struct Shape {
  std::string name;
  std::vector<uint64_t> gaps;
  std::vector<uint64_t> sizes;
};

std::vector<Shape> Shapes() {
  std::vector<Shape> shapes = {
      {"Empty", {0}, {}},
      {"OneGap", {100}, {}},
      {"NoGaps", {0, 0, 0, 0}, {5, 0, 7}},
      {"Small", {30, 16, 40, 0, 99}, {1, 2, 0, 300}},
      {"Large", {64, 90, 90, 5000}, {3 * kMiB + 17, 9 * kMiB, 2 * kMiB - 1}},
      {"LargeHead", {3 * kMiB + 5, 0, 0}, {100, 5 * kMiB}},
      {"LargeTail", {10, 2 * kMiB, 6 * kMiB + 1}, {5 * kMiB, 1}},
      {"EmptyPayloadsOnEdges", {kMiB, 0, 0, kMiB, 0}, {0, 0, kMiB, 0}},
  };
  Shape many{"Many", {}, {}};
  for (int i = 0; i < 3000; ++i) {
    many.gaps.push_back(static_cast<uint64_t>(i) % 90 + 10);
    many.sizes.push_back(static_cast<uint64_t>(i) * 7919 % 40'000);
  }
  many.gaps.push_back(700'000);
  shapes.push_back(many);
  return shapes;
}

struct Case {
  std::string name;
  SinkTraits traits;
  int threads;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class ChunkWriterTest : public ::testing::TestWithParam<Case> {};

INSTANTIATE_TEST_SUITE_P(
    Sinks, ChunkWriterTest,
    ::testing::Values(Case{"AnyOrder", {}, 4}, Case{"OneThread", {}, 1},
                      Case{"Ordered", {.ordered = true}, 4},
                      Case{"LongRequests", {.request_bytes = 4 * kMiB}, 4}),
    [](const auto& info) { return info.param.name; });

TEST_P(ChunkWriterTest, WritesEveryByteOfTheLayout) {
  for (const Shape& shape : Shapes()) {
    for (const bool wants_crc32 : {true, false}) {
      const TestLayout layout(shape.gaps, shape.sizes, wants_crc32);
      TestSink sink(GetParam().traits);
      const auto stats = Write(layout, sink, {.threads = GetParam().threads});
      ASSERT_TRUE(stats.ok()) << shape.name << stats.status().message();
      EXPECT_TRUE(sink.committed);
      EXPECT_EQ(stats->bytes, layout.size());
      EXPECT_TRUE(sink.file == layout.Expected()) << shape.name;
    }
  }
}

TEST(ChunkWriter, SaysHowMuchBypassedThePageCache) {
  const TestLayout layout({64, 90}, {3 * kMiB});
  TestSink sink({});
  for (const uint64_t bytes : {uint64_t{0}, kMiB}) {
    sink.direct = bytes;
    const auto stats = Write(layout, sink, {});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_EQ(stats->direct_bytes, bytes);
    EXPECT_EQ(stats->direct, bytes != 0);
  }
}

TEST_P(ChunkWriterTest, PayloadsOfSourcesAreReadAsTheyAreWritten) {
  for (const Shape& shape : Shapes()) {
    TestLayout layout(shape.gaps, shape.sizes);
    layout.PullAll();
    TestSink sink(GetParam().traits);
    const auto stats = Write(layout, sink, {.threads = GetParam().threads});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_TRUE(sink.file == layout.Expected()) << shape.name;
  }
}

TEST_P(ChunkWriterTest, ASourceThatFailsEndsTheWriting) {
  TestLayout layout({64, 90, 90}, {3 * kMiB, 5 * kMiB});
  layout.PullAll();
  layout.FailToPull();
  TestSink sink(GetParam().traits);
  const auto stats = Write(layout, sink, {.threads = GetParam().threads});
  EXPECT_EQ(stats.status().code(), Code::kIoError);
  EXPECT_FALSE(sink.committed);
}

TEST_P(ChunkWriterTest, WhatTheCallerThrowsEndsTheWriting) {
  const TestLayout layout({64, 90, 90}, {3 * kMiB, 5 * kMiB});
  TestSink sink(GetParam().traits);
  WriteOptions options{.threads = GetParam().threads};
  options.progress = [](uint64_t, uint64_t) {
    throw std::runtime_error("enough");
  };
  const Status status = Write(layout, sink, options).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(status.message(),
            "a function of the caller threw 'enough'; of test");
  EXPECT_FALSE(sink.committed);
}

TEST_P(ChunkWriterTest, HolesAreZeroOrNotWritten) {
  const bool skips = !GetParam().traits.ordered;
  TestLayout layout({10, 10, 10, 10}, {100, 20 * kMiB, 100});
  layout.MakeHole(1);
  TestSink sink(GetParam().traits);
  ASSERT_TRUE(Write(layout, sink, {.threads = GetParam().threads}).ok());
  const Payload& hole = layout.payloads()[1];
  for (uint64_t i = hole.offset; skips && i < hole.end(); ++i) {
    if (sink.file[i] == '?') sink.file[i] = '\0';
  }
  EXPECT_TRUE(sink.file == layout.Expected());
  if (skips) {
    EXPECT_LT(sink.written, 9 * kMiB);
  } else {
    EXPECT_EQ(sink.written, layout.size());
  }
}

TEST_P(ChunkWriterTest, FailureOfAnyWriteIsReportedAndNothingCommitted) {
  const TestLayout layout({64, 90, 90, 5000}, {kMiB, 9 * kMiB, 100});
  TestSink good(GetParam().traits);
  ASSERT_TRUE(Write(layout, good, {.threads = GetParam().threads}).ok());
  for (int i = 1; i <= good.writes; ++i) {
    TestSink sink(GetParam().traits);
    sink.fail_at = i;
    const auto stats = Write(layout, sink, {.threads = GetParam().threads});
    EXPECT_EQ(stats.status().message(), "full; of test");
    EXPECT_FALSE(sink.committed);
  }
}

TEST_P(ChunkWriterTest, FailureToEncodeAGapIsReported) {
  for (size_t gap = 0; gap < 4; ++gap) {
    TestLayout layout({64, 90, 90, 5000}, {kMiB, 9 * kMiB, 100});
    layout.FailAt(gap);
    TestSink sink(GetParam().traits);
    EXPECT_EQ(
        Write(layout, sink, {.threads = GetParam().threads}).status().code(),
        Code::kCorrupt);
    EXPECT_FALSE(sink.committed);
  }
}

TEST_P(ChunkWriterTest, CanBeCancelledWhileItWrites) {
  const TestLayout layout({64, 90}, {20 * kMiB});
  TestSink sink(GetParam().traits);
  std::atomic<bool> cancel{false};
  uint64_t last = 0;
  const auto stats = Write(layout, sink,
                           {.threads = GetParam().threads,
                            .progress =
                                [&](uint64_t done, uint64_t total) {
                                  EXPECT_GT(done, last);
                                  EXPECT_EQ(total, layout.size());
                                  last = done;
                                  cancel = true;
                                },
                            .cancel = &cancel});
  EXPECT_EQ(stats.status().code(), Code::kCancelled);
  EXPECT_FALSE(sink.committed);
  EXPECT_LT(last, layout.size());
}

TEST(ChunkWriter, ToADisk) {
  std::string pattern = ::testing::TempDir() + "haulway-write-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  const TestLayout layout({64, 90, 90, 5000}, {kMiB, 39 * kMiB + 1, 100});
  for (const bool direct : {false, true}) {
    const auto sink =
        *OpenFileSink((folder / "f").string(), {.direct = direct});
    const auto stats = Write(layout, *sink, {.threads = 3});
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    std::ifstream file(folder / "f", std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(file), {});
    EXPECT_TRUE(bytes == layout.Expected()) << direct;
  }
  std::filesystem::remove_all(folder);
}

TEST(PlannedFile, IsFilledInAnyOrderFromManyThreadsAndByOthers) {
  std::string pattern = ::testing::TempDir() + "haulway-plan-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  const auto layout = std::make_shared<TestLayout>(
      std::vector<uint64_t>{64, 90, 90, 90, 5000},
      std::vector<uint64_t>{kMiB, 3 * kMiB + 1, 100, 70});
  for (const size_t i : {0u, 1u, 2u}) layout->Withhold(i);
  const std::string path = folder / "f";
  const auto file = PlannedFile::Create(layout, path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_EQ(std::filesystem::file_size((*file)->temporary_path()),
            layout->size());
  const auto payloads = layout->payloads();
  {
    std::vector<std::jthread> threads;
    for (uint64_t at = 0; at < payloads[1].length; at += kMiB) {
      threads.emplace_back([&, at] {
        const uint64_t length = std::min(kMiB, payloads[1].length - at);
        EXPECT_TRUE(
            (*file)->Fill(1, at, layout->bytes(1).subspan(at, length)).ok());
      });
    }
  }
  {
    std::fstream other((*file)->temporary_path(),
                       std::ios::in | std::ios::out | std::ios::binary);
    for (const size_t i : {2u, 0u}) {
      other.seekp(static_cast<std::streamoff>(payloads[i].offset));
      other.write(reinterpret_cast<const char*>(layout->bytes(i).data()),
                  static_cast<std::streamsize>(payloads[i].length));
    }
  }
  const std::byte one[1] = {};
  EXPECT_EQ((*file)->Fill(2, 100, one).code(), Code::kInvalidArgument);
  EXPECT_EQ((*file)->Fill(4, 0, one).code(), Code::kInvalidArgument);
  // The payload and its checksum are known already.
  EXPECT_EQ((*file)->Fill(3, 0, one).code(), Code::kInvalidArgument);
  const auto stats = (*file)->Commit();
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(stats->bytes, layout->size());
  EXPECT_EQ(stats->tensor_bytes, 4 * kMiB + 171);
  // The first and the third payload were filled by the test.
  EXPECT_EQ(stats->written_bytes, layout->size() - kMiB - 100);
  EXPECT_EQ(stats->requests, 4u + 5u + 1u);
  EXPECT_GT(stats->threads, 0);
  std::ifstream in(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(in), {});
  EXPECT_TRUE(bytes == layout->Expected());
  std::filesystem::remove_all(folder);
}

TEST(PlannedFile, LeavesNoTraceUnlessItIsCommitted) {
  std::string pattern = ::testing::TempDir() + "haulway-plan-XXXXXX";
  const std::filesystem::path folder = ::mkdtemp(pattern.data());
  {
    const auto file = PlannedFile::Create(
        std::make_shared<TestLayout>(std::vector<uint64_t>{1, 1},
                                     std::vector<uint64_t>{10}),
        folder / "f");
    ASSERT_TRUE(file.ok());
    EXPECT_FALSE(std::filesystem::is_empty(folder));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace haulway
