#include "haulway/load.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "testing/load_suite.h"
#include "testing/test_sources.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

using test::BuildZip;
using test::BuiltZip;
using test::CountingSource;
using test::FaultSource;
using test::Little;
using test::ZipOptions;

std::string SomeBytes(uint64_t size, uint32_t seed) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<char>(seed >> 24);
  }
  return bytes;
}

// Returns uint8 storages with sizes around the limits of merging, cutting and
// alignment.
std::vector<std::pair<std::string, std::string>> SomeStorages() {
  std::vector<std::pair<std::string, std::string>> storages;
  for (const uint64_t size : {5u, 0u, 64u, 300'001u, 1u, 4096u, 0u, 700'000u}) {
    storages.emplace_back(
        std::to_string(storages.size()),
        SomeBytes(size, static_cast<uint32_t>(storages.size() + 1)));
  }
  return storages;
}

std::string PickleOf(
    const std::vector<std::pair<std::string, std::string>>& storages) {
  std::vector<test::NamedTensor> tensors;
  for (const auto& [key, bytes] : storages) {
    tensors.push_back({.name = "t" + key,
                       .storage_class = "ByteStorage",
                       .key = key,
                       .numel = bytes.size(),
                       .shape = {bytes.size()}});
  }
  return test::PickleStateDict(tensors);
}

BuiltZip Zip(const std::vector<std::pair<std::string, std::string>>& storages,
             const ZipOptions& options = {}) {
  return BuildZip(test::CheckpointRecords("a", PickleOf(storages), storages),
                  options);
}

std::string TextOf(const Buffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void ExpectAll(
    const Checkpoint& checkpoint, const LoadedStorages& loaded,
    const std::vector<std::pair<std::string, std::string>>& storages) {
  ASSERT_EQ(loaded.buffers.size(), storages.size());
  for (size_t i = 0; i < storages.size(); ++i) {
    EXPECT_EQ(checkpoint.index().storages[i].key, storages[i].first);
    EXPECT_TRUE(TextOf(loaded.buffers[i]) == storages[i].second)
        << "storage " << i;
  }
}

// A remote source.
class Server : public CountingSource {
 public:
  using CountingSource::CountingSource;
  SourceTraits Look(std::span<const ByteRange>) const override {
    SourceTraits traits;
    traits.remote = true;
    return traits;
  }
  std::optional<RemoteStats> remote_stats() const override {
    return RemoteStats{.requests = static_cast<uint64_t>(reads)};
  }
};

struct Way {
  std::string name;
  bool in_memory;
  IoMode io;
  int threads;
  ZipOptions zip;
  bool deflated = false;
};

void PrintTo(const Way& way, std::ostream* out) { *out << way.name; }

class EveryWayToLoad : public testing::TestWithParam<Way> {};

TEST_P(EveryWayToLoad, GivesTheBytesThatWereSaved) {
  const Way& way = GetParam();
  const auto storages = SomeStorages();
  auto records = test::CheckpointRecords("a", PickleOf(storages), storages);
  for (auto& record : records) record.deflated = way.deflated;
  const BuiltZip zip = BuildZip(records, way.zip);
  const std::shared_ptr<const ByteSource> source =
      way.in_memory ? test::InMemory(zip.bytes)
                    : std::make_shared<const CountingSource>(zip.bytes);
  const auto checkpoint = Checkpoint::Open(source);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  for (const uint64_t hole : {uint64_t{0}, 64 * kKiB}) {
    for (const bool verify : {false, true}) {
      const auto loaded =
          LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                       {.threads = way.threads,
                        .io = way.io,
                        .verify = verify,
                        .largest_hole = hole,
                        .chunk_bytes = 256 * kKiB});
      ASSERT_TRUE(loaded.ok()) << loaded.status().message();
      ExpectAll(**checkpoint, *loaded, storages);
      EXPECT_EQ(loaded->stats.tensor_bytes, 1'004'167u);
    }
  }
  // Memory of no bytes may be a null pointer.
  for (const uint32_t row : test::AllRows(**checkpoint)) {
    EXPECT_TRUE((*checkpoint)->ReadStorageRange(row, 0, {}).ok());
  }
}

TEST_P(EveryWayToLoad, SeesAByteThatChanged) {
  const Way& way = GetParam();
  const auto storages = SomeStorages();
  auto records = test::CheckpointRecords("a", PickleOf(storages), storages);
  for (auto& record : records) record.deflated = way.deflated;
  records[4].crc32 = 0x12345678;  // Storage 3.
  const BuiltZip zip = BuildZip(records, way.zip);
  const std::shared_ptr<const ByteSource> source =
      way.in_memory ? test::InMemory(zip.bytes)
                    : std::make_shared<const CountingSource>(zip.bytes);
  const auto checkpoint = Checkpoint::Open(source);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  LoadOptions options{.threads = way.threads, .io = way.io, .verify = true};
  const Status status =
      LoadStorages(**checkpoint, test::AllRows(**checkpoint), options).status();
  EXPECT_EQ(status.code(), Code::kMismatch);
  EXPECT_NE(status.message().find("expected 305419896"), std::string_view::npos)
      << status.message();
  EXPECT_NE(status.message().find("storage '3'"), std::string_view::npos)
      << status.message();
  options.verify = false;
  EXPECT_TRUE(
      LoadStorages(**checkpoint, test::AllRows(**checkpoint), options).ok());
}

constexpr ZipOptions kTorch = {};
constexpr ZipOptions kPages = {.alignment = 4096};
constexpr ZipOptions kOrdinary = {
    .padding = false, .descriptors = false, .zip64_end = false};
constexpr ZipOptions kSaturated = {.padding = false, .saturated = true};

INSTANTIATE_TEST_SUITE_P(
    Ways, EveryWayToLoad,
    testing::Values(
        Way{"View", true, IoMode::kMmap, 2, kTorch},
        Way{"Read", true, IoMode::kPread, 2, kTorch},
        Way{"AutoInMemory", true, IoMode::kAuto, 1, kTorch},
        Way{"AutoElsewhere", false, IoMode::kAuto, 2, kTorch},
        Way{"ReadElsewhereOneThread", false, IoMode::kPread, 1, kTorch},
        Way{"ManyThreads", false, IoMode::kPread, 64, kTorch},
        Way{"PageAligned", false, IoMode::kPread, 2, kPages},
        Way{"PageAlignedView", true, IoMode::kMmap, 2, kPages},
        Way{"Rezipped", false, IoMode::kPread, 2, kOrdinary},
        Way{"RezippedView", true, IoMode::kMmap, 2, kOrdinary},
        Way{"Saturated", false, IoMode::kPread, 2, kSaturated},
        Way{"Deflated", false, IoMode::kPread, 2, kTorch, true},
        Way{"DeflatedView", true, IoMode::kMmap, 2, kTorch, true},
        Way{"RezippedDeflated", false, IoMode::kPread, 2, kOrdinary, true}),
    [](const testing::TestParamInfo<Way>& info) { return info.param.name; });

TEST(Load, AViewIsNoCopyAndStaysWhenAllElseIsGone) {
  const auto storages = SomeStorages();
  auto bytes = std::make_shared<std::string>(Zip(storages).bytes);
  const std::byte* begin = reinterpret_cast<std::byte*>(bytes->data());
  const size_t size = bytes->size();
  auto checkpoint = Checkpoint::Open(MakeBufferSource(
      Buffer(bytes, std::as_writable_bytes(std::span<char>(*bytes)), true)));
  ASSERT_TRUE(checkpoint.ok());
  const std::weak_ptr<std::string> memory = bytes;
  bytes.reset();
  Buffer kept;
  {
    auto loaded = LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                               {.io = IoMode::kMmap});
    ASSERT_TRUE(loaded.ok());
    EXPECT_EQ(loaded->stats.io, IoMode::kMmap);
    kept = loaded->buffers[3];
  }
  checkpoint = Status(Code::kInternal, "gone");
  EXPECT_GE(kept.data(), begin);
  EXPECT_LT(kept.data(), begin + size);
  EXPECT_TRUE(TextOf(kept) == storages[3].second);
  kept = Buffer();
  EXPECT_TRUE(memory.expired()) << "nothing else keeps the memory";
}

TEST(Load, WhatIsReadIsAlignedWritableAndItsOwn) {
  const auto storages = SomeStorages();
  const BuiltZip zip = Zip(storages, kOrdinary);
  const auto checkpoint = Checkpoint::Open(test::InMemory(zip.bytes));
  ASSERT_TRUE(checkpoint.ok());
  const auto loaded = LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                                   {.io = IoMode::kPread});
  ASSERT_TRUE(loaded.ok());
  EXPECT_EQ(loaded->stats.io, IoMode::kPread);
  for (size_t i = 0; i < storages.size(); ++i) {
    const Buffer& buffer = loaded->buffers[i];
    if (buffer.size() == 0) continue;
    const uint64_t alignment = (*checkpoint)->index().storages[i].alignment();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % alignment, 0u);
    std::memset(buffer.mutable_bytes().data(), 0, buffer.size());
  }
  EXPECT_TRUE(zip.bytes == Zip(storages, kOrdinary).bytes);
}

TEST(Load, TakesSomeStoragesInAnyOrder) {
  const auto storages = SomeStorages();
  const auto checkpoint = Checkpoint::Open(
      std::make_shared<const CountingSource>(Zip(storages).bytes));
  ASSERT_TRUE(checkpoint.ok());
  const uint32_t rows[] = {7, 0, 1, 5};
  const auto loaded = LoadStorages(**checkpoint, rows);
  ASSERT_TRUE(loaded.ok());
  ASSERT_EQ(loaded->buffers.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(TextOf(loaded->buffers[i]) == storages[rows[i]].second) << i;
  }
  EXPECT_LT(loaded->stats.read_bytes, 900'000u) << "storage 3 was not wanted";
}

TEST(Load, RefusesARowThatIsNotThereAndTakesNone) {
  const auto storages = SomeStorages();
  const std::string bytes = Zip(storages).bytes;
  const auto checkpoint = Checkpoint::Open(test::InMemory(bytes));
  ASSERT_TRUE(checkpoint.ok());
  const uint32_t rows[] = {8};
  EXPECT_EQ(LoadStorages(**checkpoint, rows).status().code(),
            Code::kInvalidArgument);
  const auto none = LoadStorages(**checkpoint, {});
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->buffers.empty());
}

TEST(Load, ViewsOfASourceNotInMemoryAreRefused) {
  const auto checkpoint = Checkpoint::Open(
      std::make_shared<const CountingSource>(Zip(SomeStorages()).bytes));
  ASSERT_TRUE(checkpoint.ok());
  EXPECT_EQ(LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                         {.io = IoMode::kMmap})
                .status()
                .code(),
            Code::kUnsupported);
}

TEST(Load, StopsWhenCancelled) {
  const std::string bytes = Zip(SomeStorages()).bytes;
  const auto checkpoint = Checkpoint::Open(test::InMemory(bytes));
  ASSERT_TRUE(checkpoint.ok());
  std::atomic<bool> cancel{true};
  for (const IoMode io : {IoMode::kMmap, IoMode::kPread}) {
    EXPECT_EQ(LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                           {.io = io, .cancel = &cancel})
                  .status()
                  .code(),
              Code::kCancelled);
  }
  cancel = false;
  LoadOptions options{.threads = 1,
                      .io = IoMode::kPread,
                      .chunk_bytes = 256 * kKiB,
                      .cancel = &cancel};
  int calls = 0;
  options.progress = [&](uint64_t done, uint64_t) {
    ++calls;
    if (done > 0) cancel = true;
  };
  EXPECT_EQ(LoadStorages(**checkpoint, test::AllRows(**checkpoint), options)
                .status()
                .code(),
            Code::kCancelled);
  EXPECT_LT(calls, 5) << "cancelled half way";
}

TEST(Load, AsksAServerForMoreAtOnceButEveryThreadForTwo) {
  const std::vector<std::pair<std::string, std::string>> storages = {
      {"0", SomeBytes(4 * kMiB, 1)}};
  const auto source = std::make_shared<Server>(Zip(storages).bytes);
  const auto checkpoint = Checkpoint::Open(source);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto reads = [&](int threads) {
    const int before = source->reads;
    const auto loaded =
        LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                     {.threads = threads, .chunk_bytes = 256 * kKiB});
    EXPECT_TRUE(loaded.ok()) << loaded.status().message();
    ExpectAll(**checkpoint, *loaded, storages);
    return source->reads - before;
  };
  // A frame is a little longer than its payload.
  EXPECT_EQ(reads(1), 5) << "of 1 MiB, four chunks, at most";
  EXPECT_EQ(reads(4), 9) << "two of each";
  EXPECT_EQ(reads(16), 17) << "of a chunk, at least";
}

TEST(Load, ReadsTheHolesOfAServerInEveryWay) {
  std::vector<std::pair<std::string, std::string>> storages;
  std::vector<uint32_t> rows;
  std::vector<TensorRequest> requests;
  std::vector<std::vector<std::byte>> memory(8, std::vector<std::byte>(1000));
  for (uint32_t i = 0; i < 16; ++i) {
    // More than the largest hole that is read from a file.
    const uint64_t size = i % 2 == 0 ? 1000 : 100 * kKiB;
    storages.emplace_back(std::to_string(i), SomeBytes(size, i));
    if (i % 2 != 0) continue;
    rows.push_back(i);
    TensorRequest& request = requests.emplace_back();
    request.tensor = i;
    request.out = memory[i / 2];
  }
  const auto count = [&](std::shared_ptr<const CountingSource> source) {
    const auto checkpoint = Checkpoint::Open(source);
    EXPECT_TRUE(checkpoint.ok());
    const LoadOptions options{.threads = 1};
    std::vector<int> reads;
    const auto note = [&] { reads.push_back(source->reads.exchange(0)); };
    note();
    EXPECT_TRUE(LoadStorages(**checkpoint, rows, options).ok());
    note();
    EXPECT_TRUE(
        LoadPieces(**checkpoint, rows, options, 4 * kMiB, [](const Piece&) {
          return Status();
        }).ok());
    note();
    EXPECT_TRUE(LoadTensors(**checkpoint, requests, options).ok());
    note();
    const auto plan = PlanTensors(**checkpoint, requests, options);
    EXPECT_TRUE(plan.ok());
    reads.push_back(static_cast<int>(plan->reads.size()));
    reads.erase(reads.begin());  // The read that opens the file.
    return reads;
  };
  const std::string bytes = Zip(storages).bytes;
  EXPECT_EQ(count(std::make_shared<Server>(bytes)),
            (std::vector<int>{1, 1, 1, 1}));
  const std::vector<int> local = count(std::make_shared<CountingSource>(bytes));
  EXPECT_EQ(local[1], 8);
  EXPECT_EQ(local[3], 8);
}

TEST(Load, TheFirstStatisticsIncludeOpening) {
  const auto source =
      std::make_shared<Server>(Zip({{"0", SomeBytes(1000, 1)}}).bytes);
  const auto checkpoint = Checkpoint::Open(source);
  ASSERT_TRUE(checkpoint.ok());
  const auto requests = [&] {
    const auto loaded = LoadStorages(**checkpoint, test::AllRows(**checkpoint));
    return loaded.ok() ? loaded->stats.requests : 0;
  };
  const uint64_t first = requests();
  EXPECT_EQ(first, static_cast<uint64_t>(source->reads));
  EXPECT_GT(first, 1u);
  EXPECT_EQ(requests(), 1u);
}

TEST(Load, ProgressRisesToItsTotal) {
  const auto storages = SomeStorages();
  auto records = test::CheckpointRecords("a", PickleOf(storages), storages);
  records[4].deflated = true;  // Read, while the others are viewed.
  const std::string bytes = BuildZip(records).bytes;
  const auto checkpoint = Checkpoint::Open(test::InMemory(bytes));
  ASSERT_TRUE(checkpoint.ok());
  for (const IoMode io : {IoMode::kMmap, IoMode::kPread}) {
    std::vector<uint64_t> done;
    std::vector<uint64_t> total;
    LoadOptions options{.threads = 2, .io = io};
    options.progress = [&](uint64_t bytes_done, uint64_t bytes_wanted) {
      done.push_back(bytes_done);
      total.push_back(bytes_wanted);
    };
    ASSERT_TRUE(
        LoadStorages(**checkpoint, test::AllRows(**checkpoint), options).ok());
    ASSERT_FALSE(done.empty());
    EXPECT_TRUE(std::ranges::is_sorted(done)) << testing::PrintToString(done);
    EXPECT_EQ(std::ranges::count(total, done.back()),
              static_cast<ptrdiff_t>(total.size()))
        << testing::PrintToString(total);
  }
}

// Calls every function that loads, with a function of the caller that throws.
TEST(Load, WhatTheCallerThrowsIsAStatus) {
  const std::string bytes = Zip(SomeStorages()).bytes;
  const auto thrown = [](const char* what) {
    return std::runtime_error(std::string("from ") + what);
  };
  const auto check = [](const Status& status, const char* what) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_TRUE(status.message().starts_with(
        std::string("a function of the caller threw 'from ") + what + "'"))
        << status.message();
  };
  const auto checkpoint = *Checkpoint::Open(test::InMemory(bytes));
  const auto rows = test::AllRows(*checkpoint);
  for (const int threads : {1, 4}) {
    for (const IoMode io : {IoMode::kMmap, IoMode::kPread}) {
      const LoadOptions plain{.threads = threads, .io = io};
      LoadOptions progress = plain;
      progress.progress = [&](uint64_t, uint64_t) { throw thrown("progress"); };
      const auto keep = [](const auto&...) { return Status(); };
      check(LoadStorages(*checkpoint, rows, progress).status(), "progress");
      check(LoadPieces(*checkpoint, rows, progress, 64, keep).status(),
            "progress");
      check(LoadEach(*checkpoint, rows, progress, LoadOrder::kPlan, keep)
                .status(),
            "progress");
      const auto take = [&](const auto&...) -> Status { throw thrown("take"); };
      check(LoadPieces(*checkpoint, rows, plain, 64, take).status(), "take");
      check(LoadEach(*checkpoint, rows, plain, LoadOrder::kPlan, take).status(),
            "take");
    }
    LoadOptions allocate{.threads = threads, .io = IoMode::kPread};
    allocate.allocate = [&](uint64_t) -> Result<Buffer> {
      throw thrown("allocate");
    };
    check(LoadStorages(*checkpoint, rows, allocate).status(), "allocate");
  }
  std::atomic<bool> armed = false;
  const auto source = MakeFunctionSource(
      bytes.size(),
      [&](uint64_t offset, std::span<std::byte> out) -> Status {
        if (armed) throw thrown("source");
        std::memcpy(out.data(), bytes.data() + offset, out.size());
        return Status();
      },
      "function");
  const auto of_function = *Checkpoint::Open(source);
  armed = true;
  check(Checkpoint::Open(source).status(), "source");
  check(LoadStorages(*of_function, rows, {.threads = 4}).status(), "source");
  std::byte first;
  check(of_function->ReadStorageRange(0, 0, {&first, 1}), "source");
}

TEST(Load, ACheckpointThatIsNullIsRefused) {
  const auto stream = StorageStream::Open(nullptr, {}, {}, LoadOrder::kPlan);
  EXPECT_EQ(stream.status().message(), "checkpoint is null");
}

// A source that has some of its bytes in memory, as a cache has.
class HalfInMemory : public CountingSource {
 public:
  explicit HalfInMemory(std::string bytes)
      : CountingSource(bytes),
        views_(MakeMemorySource(
            std::as_bytes(std::span<const char>(bytes_ = bytes)))) {}
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    if (offset + length > size() / 2) return std::nullopt;
    return views_->View(offset, length);
  }

 private:
  std::string bytes_;
  const std::shared_ptr<const ByteSource> views_;
};

TEST(Load, ReadsWhatASourceHasNotInMemory) {
  const auto storages = SomeStorages();
  const auto checkpoint = *Checkpoint::Open(
      std::make_shared<const HalfInMemory>(Zip(storages).bytes));
  const auto loaded = LoadStorages(*checkpoint, test::AllRows(*checkpoint));
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  for (size_t i = 0; i < storages.size(); ++i) {
    EXPECT_TRUE(std::ranges::equal(
        loaded->buffers[i].bytes(),
        std::as_bytes(std::span<const char>(storages[i].second))));
  }
}

TEST(Load, AnErrorOfTheSourceReachesTheCaller) {
  const BuiltZip zip = Zip(SomeStorages());
  const auto source = std::make_shared<FaultSource>(
      zip.bytes, Status::FromErrno(EIO, "cannot read"));
  const auto checkpoint = Checkpoint::Open(source);
  ASSERT_TRUE(checkpoint.ok());
  source->begin = zip.records[8].payload + 600'000;  // Storage 7.
  source->end = source->begin + 1;
  for (const int threads : {1, 2, 16}) {
    const Status status =
        LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                     {.threads = threads})
            .status();
    EXPECT_EQ(status.code(), Code::kIoError);
    EXPECT_EQ(status.os_error(), EIO);
    EXPECT_NE(status.message().find("faulty"), std::string_view::npos)
        << status.message();
  }
  const uint32_t others[] = {0, 3, 5};
  EXPECT_TRUE(LoadStorages(**checkpoint, others).ok());
}

TEST(Load, OpeningFailsAsTheSourceDoesWhereverThatIs) {
  const BuiltZip zip = Zip({{"0", SomeBytes(200'000, 1)}});
  for (uint64_t at = 0; at < zip.bytes.size(); at += 97) {
    const auto source = std::make_shared<FaultSource>(
        zip.bytes, Status(Code::kTimeout, "no answer"));
    source->begin = at;
    source->end = at + 1;
    const auto checkpoint = Checkpoint::Open(source);
    const Status status =
        checkpoint.ok()
            ? LoadStorages(**checkpoint, test::AllRows(**checkpoint)).status()
            : checkpoint.status();
    EXPECT_TRUE(status.ok() || status.code() == Code::kTimeout)
        << at << ": " << status.message();
  }
}

TEST(Load, SwapsWhatABigEndianMachineWrote) {
  const std::string big = {0, 0, 0, 1, 0x3F, static_cast<char>(0x80), 0, 0};
  auto records = test::CheckpointRecords(
      "a",
      test::PickleStateDict({{"i", "IntStorage", "0", 2, {2}},
                             {"h", "ShortStorage", "1", 4, {4}},
                             {"c", "ComplexFloatStorage", "2", 1, {1}},
                             {"b", "ByteStorage", "3", 8, {8}}}),
      {{"0", big}, {"1", big}, {"2", big}, {"3", big}});
  records.push_back({"a/byteorder", "big"});
  const std::string bytes = BuildZip(records).bytes;
  const auto checkpoint = Checkpoint::Open(test::InMemory(bytes));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const std::string four = {1, 0, 0, 0, 0, 0, static_cast<char>(0x80), 0x3F};
  const std::string two = {0, 0, 1, 0, static_cast<char>(0x80), 0x3F, 0, 0};
  for (const IoMode io : {IoMode::kMmap, IoMode::kPread}) {
    const auto loaded = LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                                     {.io = io, .verify = true});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ(TextOf(loaded->buffers[0]), four);
    EXPECT_EQ(TextOf(loaded->buffers[1]), two);
    EXPECT_EQ(TextOf(loaded->buffers[2]), four) << "each part on its own";
    EXPECT_EQ(TextOf(loaded->buffers[3]), big);
  }
  EXPECT_EQ(TextOf(*(*checkpoint)->ReadStorage(0)), four);
  std::byte part[4];
  ASSERT_TRUE((*checkpoint)->ReadStorageRange(0, 4, part).ok());
  EXPECT_EQ(std::memcmp(part, four.data() + 4, 4), 0);
  EXPECT_EQ((*checkpoint)->ReadStorageRange(0, 2, part).code(),
            Code::kInvalidArgument);
}

TEST(Load, HundredThousandStorages) {
  constexpr int kCount = 100'000;
  std::vector<std::pair<std::string, std::string>> storages;
  for (int i = 0; i < kCount; ++i) {
    storages.emplace_back(std::to_string(i), Little(i * 2654435761u, 4));
  }
  const auto source = std::make_shared<CountingSource>(Zip(storages).bytes);
  const auto checkpoint = Checkpoint::Open(source);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  EXPECT_LE(source->reads.load(), 4);
  const auto loaded = LoadStorages(**checkpoint, test::AllRows(**checkpoint),
                                   {.threads = 2, .verify = true});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_LT(source->reads.load(), 100) << "neighbours are read together";
  ExpectAll(**checkpoint, *loaded, storages);
}

}  // namespace
}  // namespace haulway
