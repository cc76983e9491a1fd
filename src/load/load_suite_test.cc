// Tests the engine with the suite that combines formats, sources, I/O modes and
// destinations, and with failing sources and cancellation.

#include "testing/load_suite.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "testing/test_sources.h"

namespace haulway {
namespace {

using test::AllRows;
using test::Destination;
using test::kDestinations;
using test::LoadedText;
using test::LoadFile;
using test::LoadSource;
using test::LoadVia;

std::string FreshFolder() {
  std::string folder = testing::TempDir() + "load_suite_XXXXXX";
  EXPECT_NE(::mkdtemp(folder.data()), nullptr);
  return folder;
}

class LoadSuite : public testing::TestWithParam<LoadFile> {
 protected:
  LoadSuite() : folder_(FreshFolder()) {}
  ~LoadSuite() override { std::filesystem::remove_all(folder_); }

  // Returns the storages as ReadStorage() reads them.
  std::vector<std::string> Expected() const {
    const auto checkpoint =
        Checkpoint::Open(test::InMemory(GetParam().bytes), GetParam().open);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    std::vector<std::string> storages;
    for (const uint32_t row : AllRows(**checkpoint)) {
      const auto bytes = (*checkpoint)->ReadStorage(row);
      EXPECT_TRUE(bytes.ok()) << bytes.status().message();
      storages.emplace_back(reinterpret_cast<const char*>(bytes->data()),
                            bytes->size());
    }
    return storages;
  }

  const std::string folder_;
};

TEST_P(LoadSuite, GivesTheSameBytesFromEverySourceInEveryWay) {
  const std::vector<std::string> expected = Expected();
  for (const LoadSource& source :
       test::LoadSources(GetParam().bytes, folder_)) {
    ASSERT_NE(source.source, nullptr) << source.name;
    const auto checkpoint = Checkpoint::Open(source.source, GetParam().open);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    std::vector<IoMode> modes = source.modes;
    modes.push_back(IoMode::kAuto);
    modes.insert(modes.end(), source.perhaps.begin(), source.perhaps.end());
    for (const IoMode io : modes) {
      for (const Destination destination : kDestinations) {
        const bool verify = destination != Destination::kAllocated;
        SCOPED_TRACE(source.name + " " + std::string(Name(io)) + " " +
                     test::Name(destination));
        const auto loaded =
            LoadVia(**checkpoint, AllRows(**checkpoint),
                    {.threads = 3,
                     .io = io,
                     .verify = verify,
                     .chunk_bytes = 256 * kKiB,
                     .memory_budget = 1 * kMiB,
                     .drop_cache = destination == Destination::kEach},
                    destination);
        if (std::ranges::count(source.perhaps, io) > 0 &&
            loaded.status().code() == Code::kUnsupported) {
          continue;
        }
        ASSERT_TRUE(loaded.ok()) << loaded.status().message();
        ASSERT_TRUE(loaded->storages == expected);
        EXPECT_NE(loaded->stats.io, IoMode::kAuto);
        EXPECT_TRUE(io == IoMode::kAuto || loaded->stats.io == io);
        EXPECT_FALSE(loaded->stats.reason.empty());
        EXPECT_GE(loaded->stats.seconds, 0);
      }
    }
  }
}

// Returns a source that calls `before` at each read; `before` may make the read
// fail.
std::shared_ptr<const ByteSource> Watched(const std::string& bytes,
                                          std::function<Status()> before) {
  return MakeFunctionSource(
      bytes.size(),
      [&bytes, before = std::move(before)](uint64_t offset,
                                           std::span<std::byte> out) -> Status {
        HAULWAY_TRY(before());
        std::memcpy(out.data(), bytes.data() + offset, out.size());
        return Status();
      },
      "watched");
}

TEST_P(LoadSuite, StopsAtWhicheverReadItIsCancelled) {
  const std::vector<std::string> expected = Expected();
  for (const Destination destination : kDestinations) {
    SCOPED_TRACE(test::Name(destination));
    std::atomic<int64_t> left = INT64_MAX;
    std::atomic<bool> cancel = false;
    std::atomic<int64_t> after = 0;
    const auto source = Watched(GetParam().bytes, [&] {
      if (cancel) ++after;
      if (--left == 0) cancel = true;
      return Status();
    });
    const auto checkpoint = Checkpoint::Open(source, GetParam().open);
    ASSERT_TRUE(checkpoint.ok());
    for (int64_t at = 1;; ++at) {
      cancel = false;
      left = at;
      after = 0;
      const auto loaded = LoadVia(**checkpoint, AllRows(**checkpoint),
                                  {.threads = 2,
                                   .verify = true,
                                   .chunk_bytes = 1 * kMiB,
                                   .cancel = &cancel},
                                  destination);
      if (!cancel) {
        ASSERT_TRUE(loaded.ok()) << loaded.status().message();
        EXPECT_TRUE(loaded->storages == expected);
        break;
      }
      // The other thread may have begun one read already.
      EXPECT_LE(after, 1) << "cancelled at read " << at;
      if (loaded.ok()) {
        EXPECT_TRUE(loaded->storages == expected) << "it was the last";
      } else {
        EXPECT_EQ(loaded.status().code(), Code::kCancelled)
            << loaded.status().message();
      }
    }
  }
}

TEST_P(LoadSuite, FailsAtWhicheverReadTheSourceDoes) {
  for (const Destination destination : kDestinations) {
    SCOPED_TRACE(test::Name(destination));
    std::atomic<int64_t> left = INT64_MAX;
    const auto source = Watched(GetParam().bytes, [&] {
      if (--left == 0) return Status::FromErrno(EIO, "cannot read");
      return Status();
    });
    const auto checkpoint = Checkpoint::Open(source, GetParam().open);
    ASSERT_TRUE(checkpoint.ok());
    for (int64_t at = 1;; ++at) {
      left = at;
      const auto loaded = LoadVia(
          **checkpoint, AllRows(**checkpoint),
          {.threads = 2, .verify = true, .chunk_bytes = 1 * kMiB}, destination);
      if (left > 0) {
        EXPECT_TRUE(loaded.ok()) << loaded.status().message();
        break;
      }
      ASSERT_FALSE(loaded.ok()) << "at read " << at;
      EXPECT_EQ(loaded.status().os_error(), EIO) << loaded.status().message();
      EXPECT_NE(loaded.status().message().find("of watched"),
                std::string_view::npos)
          << loaded.status().message();
    }
  }
}

TEST_P(LoadSuite, TriesAgainAsOftenAsItMay) {
  const std::vector<std::string> expected = Expected();
  for (const Destination destination : kDestinations) {
    SCOPED_TRACE(test::Name(destination));
    std::atomic<uint64_t> calls = 0;
    std::atomic<uint64_t> failures = 0;
    std::atomic<bool> armed = false;
    // Two of three calls fail. With one thread, each request fails twice.
    const auto source = Watched(GetParam().bytes, [&] {
      if (!armed) return Status();
      const uint64_t call = calls++;
      if (call % 3 != 2) {
        ++failures;
        return Status(call % 2 == 0 ? Code::kUnavailable : Code::kTimeout,
                      "no answer");
      }
      return Status();
    });
    const auto checkpoint = Checkpoint::Open(source, GetParam().open);
    ASSERT_TRUE(checkpoint.ok());
    armed = true;
    LoadOptions options{.threads = 1, .verify = true};
    const bool alone = destination == Destination::kMemory ||
                       destination == Destination::kAllocated ||
                       destination == Destination::kPieces;
    options.retries = alone ? 2 : 1'000;
    const auto loaded =
        LoadVia(**checkpoint, AllRows(**checkpoint), options, destination);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_TRUE(loaded->storages == expected);
    EXPECT_EQ(loaded->stats.retries, failures);
    if (!alone) continue;
    calls = 0;
    options.retries = 1;
    const Code code =
        LoadVia(**checkpoint, AllRows(**checkpoint), options, destination)
            .status()
            .code();
    EXPECT_TRUE(code == Code::kUnavailable || code == Code::kTimeout);
    EXPECT_EQ(calls, 2u) << "one request, tried twice";
  }
}

INSTANTIATE_TEST_SUITE_P(Files, LoadSuite, testing::ValuesIn(test::LoadFiles()),
                         [](const testing::TestParamInfo<LoadFile>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace haulway
