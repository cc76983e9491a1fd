#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include "device/fake_cuda/fake_cuda.h"
#include "haulway/buffer.h"
#include "haulway/load.h"
#include "testing/goldens.h"
#include "testing/load_suite.h"
#include "testing/test_sources.h"
#include "testing/zip_builder.h"

namespace haulway {
namespace {

using ::testing::HasSubstr;

// Returns a file with tensors around the size of a piece, and many small ones.
std::string LargeFile() {
  std::vector<test::NamedTensor> tensors;
  std::vector<std::pair<std::string, std::string>> storages;
  std::vector<uint64_t> sizes = {9'000'001, 4 << 20, 0, (4 << 20) + 1};
  for (int i = 0; i < 300; ++i) sizes.push_back(1 + i * 37);
  for (const uint64_t size : sizes) {
    const std::string key = std::to_string(storages.size());
    std::string bytes(size, '\0');
    uint32_t seed = static_cast<uint32_t>(size);
    for (char& byte : bytes) {
      seed = seed * 1664525 + 1013904223;
      byte = static_cast<char>(seed >> 24);
    }
    storages.emplace_back(key, std::move(bytes));
    tensors.push_back({.name = "t" + key,
                       .storage_class = "ByteStorage",
                       .key = key,
                       .numel = size,
                       .shape = {size}});
  }
  return test::BuildZip(test::CheckpointRecords(
                            "a", test::PickleStateDict(tensors), storages))
      .bytes;
}

void ExpectNothingLeft() {
  const FakeCudaCounts left = FakeCudaCount();
  EXPECT_EQ(left.contexts, 0);
  EXPECT_EQ(left.allocations, 0);
  EXPECT_EQ(left.pinned, 0);
  EXPECT_EQ(left.streams, 0);
  EXPECT_EQ(left.events, 0);
  EXPECT_EQ(left.faults, 0);
}

Result<DeviceStorages> LoadThere(const Checkpoint& checkpoint,
                                 const LoadOptions& options) {
  HAULWAY_ASSIGN(const auto device, CudaDevice::Open(0, HAULWAY_FAKE_CUDA));
  return LoadToDevice(checkpoint, test::AllRows(checkpoint), *device, options);
}

void ExpectSame(const std::string& file, const LoadOptions& options) {
  FakeCudaReset(1, 256 << 20);
  const auto checkpoint = Checkpoint::Open(test::InMemory(file));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status().message();
  const auto rows = test::AllRows(**checkpoint);
  const auto expected = LoadStorages(**checkpoint, rows, {});
  ASSERT_TRUE(expected.ok());
  {
    const auto loaded = LoadThere(**checkpoint, options);
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    ASSERT_EQ(loaded.value().buffers.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const DeviceBuffer& found = loaded.value().buffers[i];
      const Buffer& wanted = expected.value().buffers[i];
      ASSERT_EQ(found.size, wanted.size());
      EXPECT_EQ(found.address % 256, 0u);
      EXPECT_TRUE(std::equal(wanted.bytes().begin(), wanted.bytes().end(),
                             reinterpret_cast<const std::byte*>(found.address)))
          << i;
    }
    EXPECT_LE(FakeCudaCount().allocations, 1);
  }
  ExpectNothingLeft();
}

TEST(LoadToDevice, BringsEveryGoldenThere) {
  for (const std::string& name : test::GoldenNames(".pt")) {
    SCOPED_TRACE(name);
    ExpectSame(test::ReadGolden(name), {});
  }
}

TEST(LoadToDevice, CutsAndGathersWithSmallBudgets) {
  const std::string file = LargeFile();
  for (const int threads : {1, 2, 7}) {
    for (const bool verify : {false, true}) {
      LoadOptions options;
      options.threads = threads;
      options.verify = verify;
      options.memory_budget = 1;
      ExpectSame(file, options);
    }
  }
}

TEST(LoadToDevice, EveryCallMayFailAndNothingLeaks) {
  const std::string file = LargeFile();
  const auto checkpoint = Checkpoint::Open(test::InMemory(file));
  ASSERT_TRUE(checkpoint.ok());
  LoadOptions options;
  options.threads = 2;
  for (long call = 1;; call += call < 40 ? 1 : 101) {
    ASSERT_LT(call, 100'000) << "no load succeeds";
    FakeCudaReset(1, 256 << 20);
    FakeCudaFail(call, 700);
    const auto status = LoadThere(**checkpoint, options).status();
    FakeCudaFail(0, 0);
    ExpectNothingLeft();
    if (status.ok()) {
      EXPECT_GT(call, 300);
      break;
    }
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"));
  }
}

TEST(LoadToDevice, WithoutPinnedMemoryItTakesOther) {
  FakeCudaReset(1, 256 << 20);
  FakeCudaRefusePinned();
  const std::string file = LargeFile();
  const auto checkpoint = Checkpoint::Open(test::InMemory(file));
  ASSERT_TRUE(checkpoint.ok());
  const auto loaded = LoadThere(**checkpoint, {});
  ASSERT_TRUE(loaded.ok()) << loaded.status().message();
  EXPECT_EQ(FakeCudaCount().pinned, 0);
}

TEST(LoadToDevice, SaysWhenItDoesNotFit) {
  FakeCudaReset(1, 1 << 20);
  const std::string file = LargeFile();
  const auto checkpoint = Checkpoint::Open(test::InMemory(file));
  ASSERT_TRUE(checkpoint.ok());
  const Status status = LoadThere(**checkpoint, {}).status();
  EXPECT_EQ(status.code(), Code::kLimit);
  EXPECT_THAT(std::string(status.message()), HasSubstr("on cuda:0"));
  ExpectNothingLeft();
}

}  // namespace
}  // namespace haulway
