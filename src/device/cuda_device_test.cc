#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "device/fake_cuda/fake_cuda.h"
#include "haulway/buffer.h"

namespace haulway {
namespace {

using ::testing::HasSubstr;

constexpr size_t kMiB8 = 8 << 20;

class Cuda : public ::testing::Test {
 protected:
  Cuda() { FakeCudaReset(/*devices=*/2, /*bytes=*/kMiB8); }

  static void ExpectNothingLeft() {
    const FakeCudaCounts left = FakeCudaCount();
    EXPECT_EQ(left.contexts, 0);
    EXPECT_EQ(left.pushed, 0);
    EXPECT_EQ(left.allocations, 0);
    EXPECT_EQ(left.pinned, 0);
    EXPECT_EQ(left.streams, 0);
    EXPECT_EQ(left.events, 0);
    EXPECT_EQ(left.faults, 0);
  }

  static Result<std::shared_ptr<const CudaDevice>> Open(int ordinal = 0) {
    return CudaDevice::Open(ordinal, HAULWAY_FAKE_CUDA);
  }
};

std::span<const char> BytesOf(const DeviceBuffer& bytes) {
  return {reinterpret_cast<const char*>(bytes.address), bytes.size};
}

// Copies 40 pieces through a ring of three pinned slots.
Status UploadThroughRing(std::string* result) {
  HAULWAY_ASSIGN(const auto device, CudaDevice::Open(0, HAULWAY_FAKE_CUDA));
  constexpr size_t kPiece = 1000;
  constexpr size_t kPieces = 40;
  HAULWAY_ASSIGN(const DeviceBuffer memory, device->Allocate(kPieces * kPiece));
  struct Slot {
    Buffer memory;
    std::shared_ptr<bool> is_free = std::make_shared<bool>(true);
  };
  std::vector<Slot> ring(3);
  for (Slot& slot : ring) {
    HAULWAY_ASSIGN(slot.memory, device->AllocatePinned(kPiece));
  }
  HAULWAY_ASSIGN(const auto upload, device->StartUpload(2));
  for (size_t i = 0; i < kPieces; ++i) {
    // One of the three is free, since at most two are being copied.
    Slot* slot = nullptr;
    for (Slot& candidate : ring) {
      if (*candidate.is_free) slot = &candidate;
    }
    if (slot == nullptr) return Status(Code::kInternal, "no slot is free");
    *slot->is_free = false;
    std::memset(slot->memory.mutable_bytes().data(), static_cast<int>(i),
                kPiece);
    std::shared_ptr<const void> owner(
        slot->memory.data(),
        [is_free = slot->is_free](const void*) { *is_free = true; });
    HAULWAY_TRY(upload->Copy(
        memory, i * kPiece,
        Buffer(std::move(owner), slot->memory.mutable_bytes(), true)));
  }
  HAULWAY_TRY(upload->Finish());
  const auto bytes = BytesOf(memory);
  result->assign(bytes.begin(), bytes.end());
  return Status();
}

std::string Expected() {
  std::string text;
  for (int i = 0; i < 40; ++i) text.append(1000, static_cast<char>(i));
  return text;
}

TEST_F(Cuda, MemoryIsUsedAgainOnlyWhenItWasCopied) {
  std::string result;
  const Status status = UploadThroughRing(&result);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(result, Expected());
  EXPECT_EQ(FakeCudaCount().copies, 40);
  ExpectNothingLeft();
}

TEST_F(Cuda, EveryCallMayFailAndNothingLeaks) {
  for (long call = 1;; ++call) {
    ASSERT_LT(call, 100'000) << "no load succeeds";
    FakeCudaReset(1, kMiB8);
    FakeCudaFail(call, 700);
    std::string result;
    const Status status = UploadThroughRing(&result);
    FakeCudaFail(0, 0);
    ExpectNothingLeft();
    if (status.ok()) {
      EXPECT_EQ(result, Expected());
      EXPECT_GT(call, 100);
      break;
    }
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("CUDA_ERROR_ILLEGAL_ADDRESS"))
        << call;
  }
}

// Copies a Buffer, in parts of 1000 bytes, to the offsets `places` on a device,
// checks the result, and returns the number of copies that the driver ran.
long CopiesTo(const std::vector<size_t>& places, size_t room) {
  const auto device = CudaDevice::Open(0, HAULWAY_FAKE_CUDA);
  EXPECT_TRUE(device.ok());
  const auto memory = (*device)->Allocate(room);
  EXPECT_TRUE(memory.ok());
  const auto pinned = (*device)->AllocatePinned(places.size() * 1000);
  EXPECT_TRUE(pinned.ok());
  const auto upload = (*device)->StartUpload(2);
  EXPECT_TRUE(upload.ok());
  const long before = FakeCudaCount().copies;
  for (size_t i = 0; i < places.size(); ++i) {
    Buffer part = pinned->Slice(i * 1000, 1000);
    std::memset(part.mutable_bytes().data(), static_cast<int>(i), 1000);
    EXPECT_TRUE((*upload)->Copy(*memory, places[i], std::move(part)).ok());
  }
  EXPECT_TRUE((*upload)->Finish().ok());
  for (size_t i = 0; i < places.size(); ++i) {
    for (const size_t at : {size_t{0}, size_t{999}}) {
      EXPECT_EQ(BytesOf(*memory)[places[i] + at], static_cast<char>(i)) << i;
    }
  }
  return FakeCudaCount().copies - before;
}

TEST_F(Cuda, NeighboursAreCopiedAtOnce) {
  std::vector<size_t> places;
  for (size_t i = 0; i < 200; ++i) places.push_back(i * 1000);
  EXPECT_EQ(CopiesTo(places, 200'000), 1);
  // The targets have gaps, or are in another order.
  EXPECT_EQ(CopiesTo({0, 1000, 2001, 3001, 4001, 5002}, 10'000), 3);
  EXPECT_EQ(CopiesTo({3000, 2000, 1000, 0}, 10'000), 4);
  // A long run is not kept back until its end.
  places.clear();
  for (size_t i = 0; i < 1000; ++i) places.push_back(i * 1000);
  const long copies = CopiesTo(places, 1'000'000);
  EXPECT_GE(copies, 3);
  EXPECT_LE(copies, 8);
  ExpectNothingLeft();
}

TEST_F(Cuda, ManyThreadsShareAnUpload) {
  {
    const auto device = Open();
    ASSERT_TRUE(device.ok());
    const auto memory = device.value()->Allocate(64 * 1024);
    ASSERT_TRUE(memory.ok());
    const auto upload = device.value()->StartUpload(3);
    ASSERT_TRUE(upload.ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&, t] {
        for (int i = t; i < 64; i += 4) {
          auto pinned = device.value()->AllocatePinned(1024);
          ASSERT_TRUE(pinned.ok());
          std::memset(pinned.value().mutable_bytes().data(), i, 1024);
          ASSERT_TRUE(upload.value()
                          ->Copy(*memory, 1024u * i, std::move(*pinned))
                          .ok());
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    ASSERT_TRUE(upload.value()->Finish().ok());
    for (int i = 0; i < 64; ++i) {
      EXPECT_EQ(BytesOf(*memory)[1024u * i + 1023], static_cast<char>(i));
    }
  }
  EXPECT_EQ(FakeCudaCount().allocations, 0);
  EXPECT_EQ(FakeCudaCount().pinned, 0);
}

TEST_F(Cuda, MemoryOutlivesItsDevice) {
  DeviceBuffer kept;
  {
    const auto device = Open(1);
    ASSERT_TRUE(device.ok());
    const auto memory = device.value()->Allocate(100);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(memory.value().ordinal, 1);
    EXPECT_EQ(memory.value().address % 256, 0u);
    kept = *memory;
  }
  EXPECT_EQ(FakeCudaCount().allocations, 1);
  EXPECT_EQ(FakeCudaCount().contexts, 1);
  kept = DeviceBuffer();
  ExpectNothingLeft();
}

TEST_F(Cuda, SaysWhatIsMissing) {
  const Status none = CudaDevice::Open(0, "libcuda_is_not_here.so.1").status();
  EXPECT_EQ(none.code(), Code::kUnsupported);
  EXPECT_EQ(none.message(),
            "no CUDA driver: cannot load libcuda_is_not_here.so.1");

  const Status other = CudaDevice::Open(0, "libz.so.1").status();
  EXPECT_EQ(other.code(), Code::kUnsupported);

  EXPECT_EQ(Open(2).status().code(), Code::kNotFound);
  EXPECT_EQ(Open(2).status().message(), "no GPU 2: expected below 2");
  EXPECT_EQ(Open(-1).status().message(), "no GPU -1: expected below 2");

  FakeCudaReset(0, 0);
  const Status empty = Open().status();
  EXPECT_EQ(empty.code(), Code::kUnsupported);
  EXPECT_EQ(empty.message(), "no GPU: cuInit: CUDA_ERROR_NO_DEVICE");
  ExpectNothingLeft();
}

TEST_F(Cuda, SaysHowMuchMemoryThereWasNot) {
  const auto device = Open();
  ASSERT_TRUE(device.ok());
  const Status status = device.value()->Allocate(kMiB8 + 1).status();
  EXPECT_EQ(status.code(), Code::kLimit);
  EXPECT_EQ(status.message(),
            "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY; in 8388609 bytes on cuda:0");
  EXPECT_TRUE(device.value()->Allocate(0).ok());
  EXPECT_TRUE(device.value()->AllocatePinned(0).ok());
}

}  // namespace
}  // namespace haulway
