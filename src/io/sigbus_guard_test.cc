#include "base/sigbus_guard.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "base/no_memory.h"
#include "base/page_bytes.h"
#include "base/thread_pool.h"
#include "haulway/source.h"

namespace haulway {
namespace {

constexpr uint64_t kMapped = 1 << 20;

// A mapped file, with a view of all of it, that was then truncated to 100
// bytes.
struct CutFile {
  std::shared_ptr<const ByteSource> source;
  Buffer view;
};

CutFile MakeCutFile() {
  std::string path = ::testing::TempDir() + "haulway-cut-XXXXXX";
  ::close(::mkstemp(path.data()));
  std::ofstream(path, std::ios::binary) << std::string(kMapped, 'x');
  CutFile file{*OpenMmapSource(path), {}};
  file.view = *file.source->View(0, kMapped);
  EXPECT_EQ(::truncate(path.c_str(), 100), 0);
  ::unlink(path.c_str());
  return file;
}

unsigned Sum(std::span<const std::byte> bytes) {
  unsigned sum = 0;
  for (const std::byte byte : bytes) sum += static_cast<unsigned>(byte);
  return sum;
}

// Each test runs in its own process, because the handler belongs to the
// process.
void Expect(bool what) {
  if (!what) std::_Exit(1);
}
#define EXPECT_IN_CHILD(work) \
  EXPECT_EXIT(                \
      {                       \
        work();               \
        std::_Exit(0);        \
      },                      \
      ::testing::ExitedWithCode(0), "")

TEST(MappedSource, GivesNoViewOfWhatWasCutOff) {
  const auto source = MakeCutFile().source;
  EXPECT_TRUE(source->View(0, 100).has_value());
  EXPECT_FALSE(source->View(0, 101).has_value());
  EXPECT_FALSE(source->View(kMapped - 1, 1).has_value());
}

TEST(SigbusGuard, ReadingAMappedFileThatWasCutIsTruncated) {
  EXPECT_IN_CHILD([] {
    InstallSigbusGuard();
    const auto source = MakeCutFile().source;
    std::vector<std::byte> out(8192);
    Expect(source->ReadAt(0, std::span(out).first(100)).ok());
    const Status status = source->ReadAt(300'000, out);
    Expect(status.code() == Code::kTruncated);
    const uint64_t lost = 300'000 / PageBytes() * PageBytes();
    Expect(status.message() ==
           "the file was cut while it was mapped; at byte " +
               std::to_string(lost));
    // Zeros replaced the lost pages, but no call returns them as data.
    Expect(source->ReadAt(300'000, out).code() == Code::kTruncated);
    Expect(!source->View(0, 10).has_value());
    Expect(
        source->Reopen(IoMode::kPread).value()->ReadAt(300'000, out).code() ==
        Code::kTruncated);
  });
}

TEST(SigbusGuard, WorkOnAViewThatWasCutIsTruncatedWhateverItMadeOfIt) {
  EXPECT_IN_CHILD([] {
    InstallSigbusGuard();
    const Buffer view = MakeCutFile().view;
    const Status status = OrNoMemory([&]() -> Status {
      return Status(Code::kMismatch, std::to_string(Sum(view.bytes())));
    });
    Expect(status.code() == Code::kTruncated);
    const Result<int> result = OrNoMemory([&]() -> Result<int> { return 1; });
    Expect(result.ok());
  });
}

TEST(SigbusGuard, ThreadsOfAPoolAreGuarded) {
  EXPECT_IN_CHILD([] {
    InstallSigbusGuard();
    const Buffer view = MakeCutFile().view;
    const Status status = ParallelFor(8, 4, [&](uint64_t i) -> Status {
      const unsigned sum =
          Sum(view.bytes().subspan(i * (kMapped / 8), kMapped / 8));
      return sum == 1 ? Status(Code::kMismatch, "one") : Status();
    });
    Expect(status.code() == Code::kTruncated);
  });
}

TEST(SigbusGuard, WhatTheUserTouchesIsTheUsers) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        InstallSigbusGuard();
        const Buffer view = MakeCutFile().view;
        std::_Exit(static_cast<int>(Sum(view.bytes())) & 1);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

TEST(SigbusGuard, HandlersOfBeforeAreCalledForTheRest) {
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, [](int) { std::_Exit(42); });
        InstallSigbusGuard();
        const Buffer view = MakeCutFile().view;
        std::_Exit(static_cast<int>(Sum(view.bytes())) & 1);
      },
      ::testing::ExitedWithCode(42), "");
  EXPECT_EXIT(
      {
        ::signal(SIGBUS, SIG_DFL);
        InstallSigbusGuard();
        const GuardedSection section;
        ::raise(SIGBUS);
        std::_Exit(0);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace haulway
