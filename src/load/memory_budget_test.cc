// Measures how much memory is in use at once.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "haulway/load.h"
#include "load/staging.h"
#include "testing/faults.h"
#include "testing/load_suite.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

using test::AllRows;

constexpr uint64_t kStorages = 48;
constexpr uint64_t kBudget = 4 * kMiB;

// An allocator that counts the bytes in use.
struct Meter {
  std::atomic<uint64_t> now = 0;
  std::atomic<uint64_t> peak = 0;

  std::function<Result<Buffer>(uint64_t)> Allocator() {
    return [this](uint64_t bytes) -> Result<Buffer> {
      const uint64_t total = now += bytes;
      for (uint64_t most = peak;
           total > most && !peak.compare_exchange_weak(most, total);) {
      }
      auto* memory = new std::byte[bytes];
      std::shared_ptr<std::byte> owner(memory, [this, bytes](std::byte* old) {
        delete[] old;
        now -= bytes;
      });
      return Buffer(std::move(owner), {memory, bytes}, /*writable=*/true);
    };
  }
};

// 48 storages of 1 MiB.
std::string File(bool deflated) {
  std::vector<std::pair<std::string, std::string>> storages;
  std::vector<test::NamedTensor> tensors;
  for (uint64_t i = 0; i < kStorages; ++i) {
    const std::string key = std::to_string(i);
    tensors.push_back({.name = "t" + key,
                       .storage_class = "ByteStorage",
                       .key = key,
                       .numel = kMiB,
                       .shape = {kMiB}});
    storages.emplace_back(key, std::string(kMiB, static_cast<char>('a' + i)));
  }
  auto records =
      test::CheckpointRecords("a", test::PickleStateDict(tensors), storages);
  for (auto& record : records) record.deflated = deflated;
  return test::BuildZip(records).bytes;
}

std::shared_ptr<const Checkpoint> Open(const std::string& bytes) {
  auto checkpoint = Checkpoint::Open(MakeFunctionSource(
      bytes.size(),
      [&bytes](uint64_t offset, std::span<std::byte> out) {
        std::memcpy(out.data(), bytes.data() + offset, out.size());
        return Status();
      },
      "file"));
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  return *checkpoint;
}

class MemoryBudget : public testing::TestWithParam<bool> {
 protected:
  const std::string bytes_ = File(GetParam());
  const std::shared_ptr<const Checkpoint> checkpoint_ = Open(bytes_);
  Meter meter_;
};

TEST_P(MemoryBudget, StoragesHandedOneByOneStayWithin) {
  LoadOptions options{.threads = 4, .chunk_bytes = 256 * kKiB};
  options.memory_budget = kBudget;
  options.allocate = meter_.Allocator();
  for (const LoadOrder order : {LoadOrder::kPlan, LoadOrder::kCompletion}) {
    std::vector<size_t> positions;
    const auto stats = LoadEach(*checkpoint_, AllRows(*checkpoint_), options,
                                order, [&](size_t position, Buffer bytes) {
                                  positions.push_back(position);
                                  EXPECT_EQ(bytes.size(), kMiB);
                                  std::this_thread::yield();
                                  return Status();
                                });
    ASSERT_TRUE(stats.ok()) << stats.status().message();
    EXPECT_EQ(positions.size(), kStorages);
    EXPECT_TRUE(order != LoadOrder::kPlan || std::ranges::is_sorted(positions));
  }
  EXPECT_LE(meter_.peak, kBudget + 64 * kKiB) << "frames come with them";
  EXPECT_GE(meter_.peak, 2 * kMiB) << "reading ahead";
  EXPECT_EQ(meter_.now, 0u);
}

TEST_P(MemoryBudget, PiecesStayWithinWhoeverKeepsSome) {
  LoadOptions options{.threads = 4};
  options.memory_budget = kBudget;
  options.allocate = meter_.Allocator();
  std::mutex mutex;
  std::vector<Piece> kept;
  uint64_t taken = 0;
  const auto stats = LoadPieces(*checkpoint_, AllRows(*checkpoint_), options,
                                128 * kKiB, [&](Piece piece) {
                                  const std::lock_guard lock(mutex);
                                  taken += piece.bytes.size();
                                  kept.push_back(std::move(piece));
                                  if (kept.size() == 8) kept.clear();
                                  return Status();
                                });
  ASSERT_TRUE(stats.ok()) << stats.status().message();
  EXPECT_EQ(taken, kStorages * kMiB);
  EXPECT_LE(meter_.peak, kBudget);
  kept.clear();
  EXPECT_EQ(meter_.now, 0u);
}

TEST_P(MemoryBudget, AStreamThatIsLeftEarlyLetsGoOfAll) {
  LoadOptions options{.threads = 2};
  options.memory_budget = kBudget;
  options.allocate = meter_.Allocator();
  auto stream = StorageStream::Open(checkpoint_, AllRows(*checkpoint_), options,
                                    LoadOrder::kPlan);
  ASSERT_TRUE(stream.ok()) << stream.status().message();
  Buffer kept;
  for (int i = 0; i < 3; ++i) {
    auto next = (*stream)->Next();
    ASSERT_TRUE(next.ok() && next->has_value());
    kept = (*next)->bytes;
  }
  EXPECT_LE((*stream)->stats().read_bytes, bytes_.size());
  stream->reset();
  EXPECT_EQ(kept.data()[5], std::byte{'c'});
  kept = Buffer();
  EXPECT_EQ(meter_.now, 0u);
  EXPECT_LE(meter_.peak, kBudget + 64 * kKiB);
}

INSTANTIATE_TEST_SUITE_P(Encodings, MemoryBudget, testing::Bool(),
                         [](const testing::TestParamInfo<bool>& info) {
                           return info.param ? "Deflated" : "Raw";
                         });

TEST(LoadAllocate, IsAskedOnceForTheWholeRequest) {
  const std::string bytes = File(false);
  const auto checkpoint = Open(bytes);
  Meter meter;
  int calls = 0;
  LoadOptions options;
  options.allocate = [&](uint64_t size) {
    ++calls;
    return meter.Allocator()(size);
  };
  {
    const auto loaded =
        LoadStorages(*checkpoint, AllRows(*checkpoint), options);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_GE(loaded->buffers[0].size(), kMiB);
  }
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(meter.now, 0u);
  options.allocate = [](uint64_t) { return Buffer(); };
  const Status status =
      LoadStorages(*checkpoint, AllRows(*checkpoint), options).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_NE(status.message().find("found 0"), std::string_view::npos);
  options.allocate = [](uint64_t) -> Result<Buffer> {
    return Status(Code::kLimit, "no room");
  };
  EXPECT_EQ(
      LoadStorages(*checkpoint, AllRows(*checkpoint), options).status().code(),
      Code::kLimit);
}

TEST(Staging, GivesOutNoMoreThanItMay) {
  const LoadOptions options;
  const LoadProgress progress(options);
  Staging staging(2 * kMiB, &progress);
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const auto lease = staging.Take(kMiB / (1 + (t + i) % 3));
        ASSERT_TRUE(lease.ok());
        std::memset(lease->bytes().data(), t, lease->bytes().size());
      }
    });
  }
  threads.clear();
  EXPECT_LE(staging.peak(), 2 * kMiB);
  EXPECT_TRUE(staging.Take(5 * kMiB).ok()) << "alone, more than the budget";
}

TEST(Load, AFileThatIsCutUnderWayIsTruncated) {
  const std::string bytes = File(false);
  for (const test::Destination destination : test::kDestinations) {
    SCOPED_TRACE(test::Name(destination));
    test::Faults faults;
    faults.cut_from = 40;
    faults.cut_at = 20 * kMiB;
    const auto checkpoint =
        Checkpoint::Open(std::make_shared<const test::FaultySource>(
            MakeMemorySource(std::as_bytes(std::span<const char>(bytes))),
            faults));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
    const auto loaded =
        test::LoadVia(**checkpoint, AllRows(**checkpoint),
                      {.threads = 2, .chunk_bytes = 256 * kKiB}, destination);
    EXPECT_EQ(loaded.status().code(), Code::kTruncated)
        << loaded.status().message();
  }
}

}  // namespace
}  // namespace haulway
