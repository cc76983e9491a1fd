// Tests local files with short reads, interruptions and truncation.

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <string>
#include <vector>

#include "haulway/source.h"
#include "testing/faults.h"

namespace haulway {
namespace {

using test::Faults;
using test::FaultySource;
using test::ShortReads;

constexpr size_t kSize = 9'000'011;

std::string Pattern() {
  std::string bytes(kSize, '\0');
  uint32_t state = 1;
  for (char& byte : bytes) {
    state = state * 1664525 + 1013904223;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

class FileUnderFault : public ::testing::TestWithParam<IoMode> {
 protected:
  FileUnderFault() : path_(::testing::TempDir() + "haulway-fault-XXXXXX") {
    ::close(::mkstemp(path_.data()));
    std::ofstream(path_, std::ios::binary) << bytes_;
  }
  ~FileUnderFault() override { ::unlink(path_.c_str()); }
  void SetUp() override {
    const auto source = (*OpenFileSource(path_))->Reopen(GetParam());
    if (source.status().code() == Code::kUnsupported) {
      GTEST_SKIP() << source.status().message();
    }
  }
  std::shared_ptr<const ByteSource> Open() const {
    return *(*OpenFileSource(path_))->Reopen(GetParam());
  }
  Status Read(const ByteSource& source, uint64_t offset, size_t length,
              std::string* out) const {
    out->assign(length, '?');
    return source.ReadAt(offset, std::as_writable_bytes(std::span(*out)));
  }

  const std::string bytes_ = Pattern();
  std::string path_;
};

INSTANTIATE_TEST_SUITE_P(Io, FileUnderFault,
                         ::testing::Values(IoMode::kPread, IoMode::kDirect,
                                           IoMode::kUring),
                         [](const auto& info) {
                           return std::string(Name(info.param));
                         });

TEST_P(FileUnderFault, ReadsOnAfterShortReadsAndInterrupts) {
  const auto source = Open();
  std::string out;
  for (const uint64_t most :
       {uint64_t{100'001}, uint64_t{65'536}, uint64_t{1 << 20}}) {
    const ShortReads faults({.most_bytes = most, .interrupt_every = 3});
    ASSERT_TRUE(Read(*source, 5, kSize - 7, &out).ok());
    ASSERT_EQ(out, bytes_.substr(5, kSize - 7)) << most;
  }
}

TEST_P(FileUnderFault, AnErrorOfTheSystemReachesTheCaller) {
  if (GetParam() == IoMode::kUring) return;  // kUring does not call pread(2).
  const auto source = Open();
  std::string out;
  {
    const ShortReads faults({.fail_from = 0, .error = EIO});
    const Status status = Read(*source, 0, kSize, &out);
    EXPECT_EQ(status.code(), Code::kIoError);
    EXPECT_EQ(status.os_error(), EIO);
  }
  EXPECT_TRUE(Read(*source, 0, kSize, &out).ok());
}

TEST_P(FileUnderFault, WhatO_DIRECTRefusesIsReadThroughThePageCache) {
  const auto source = Open();
  std::string out;
  // The system itself refuses a length that is not a multiple of blocks.
  const ShortReads faults({.most_bytes = 1'000'001});
  ASSERT_TRUE(Read(*source, 4096, kSize - 4096, &out).ok());
  EXPECT_EQ(out, bytes_.substr(4096));
}

TEST_P(FileUnderFault, AFileThatWasCutIsTruncatedPastTheCut) {
  const auto source = Open();
  ASSERT_EQ(::truncate(path_.c_str(), 5'000'000), 0);
  std::string out;
  EXPECT_TRUE(Read(*source, 4'000'000, 1'000'000, &out).ok());
  EXPECT_EQ(out, bytes_.substr(4'000'000, 1'000'000));
  for (const uint64_t offset : {uint64_t{0}, uint64_t{4'999'999},
                                uint64_t{5'000'000}, uint64_t{8'000'000}}) {
    EXPECT_EQ(Read(*source, offset, kSize - offset, &out).code(),
              Code::kTruncated)
        << offset;
  }
}

TEST_P(FileUnderFault, ReadManyOfACutFileLeavesNothingInFlight) {
  const auto source = Open();
  ASSERT_EQ(::truncate(path_.c_str(), 100'000), 0);
  std::vector<std::string> outs(60, std::string(150'000, '?'));
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < outs.size(); ++i) {
    requests.push_back(
        {i * 150'000, std::as_writable_bytes(std::span(outs[i]))});
  }
  EXPECT_EQ(source->ReadMany(requests).code(), Code::kTruncated);
  std::string out;
  EXPECT_TRUE(Read(*source, 10, 1000, &out).ok());
  EXPECT_EQ(out, bytes_.substr(10, 1000));
}

TEST(FaultySource, FailsTheReadsItIsToldTo) {
  const std::string bytes = "0123456789";
  const auto memory =
      MakeMemorySource(std::as_bytes(std::span<const char>(bytes)));
  int seen = 0;
  const FaultySource source(
      memory, Faults{.before_read =
                         [&](uint64_t, uint64_t, uint64_t) {
                           ++seen;
                           return Status();
                         },
                     .fail_from = 1,
                     .failures = 2,
                     .failure = Status(Code::kUnavailable, "later"),
                     .cut_from = 4,
                     .cut_at = 5});
  std::byte out[4];
  EXPECT_TRUE(source.ReadAt(0, out).ok());
  EXPECT_EQ(source.ReadAt(0, out).code(), Code::kUnavailable);
  EXPECT_EQ(source.ReadAt(0, out).code(), Code::kUnavailable);
  EXPECT_TRUE(source.ReadAt(6, out).ok());
  EXPECT_EQ(source.ReadAt(4, out).code(), Code::kTruncated);
  EXPECT_TRUE(source.ReadAt(1, out).ok());
  EXPECT_EQ(seen, 6);
  EXPECT_EQ(source.reads(), 6u);
}

}  // namespace
}  // namespace haulway
