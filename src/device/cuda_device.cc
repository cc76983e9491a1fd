// Design: a device holds the primary context, which torch uses too. Device
// memory and pinned memory are Buffers that keep the context alive. Pinned
// memory that is released is kept in a pool for the next load, because
// allocating it takes longer than filling it. An upload is one stream, whose
// copies run in order. So one event per MiB is enough to know which Buffers can
// be released, and small copies need no event of their own. Starting a copy
// takes about 4 us, so small copies that are neighbours both in the Buffer and
// on the device are started as one. Each driver call pushes the context on the
// calling thread and pops it afterwards, so the caller's own context is
// unchanged.

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/fresh_memory.h"
#include "base/thread_pool.h"
#include "device/cuda_driver.h"
#include "haulway/buffer.h"
#include "haulway/options.h"

namespace haulway {

namespace cuda {

namespace {

// Largest amount of pinned memory that a device keeps for the next load.
constexpr uint64_t kMostPinnedKept = 64 * kMiB;
constexpr uint64_t kLeastPinned = kMiB;
// Number of threads that populate memory. More are not faster.
constexpr int kPopulating = 4;
// An event is recorded after this many copies or bytes: an event takes about as
// long as a small copy.
constexpr size_t kCopiesPerEvent = 64;
constexpr uint64_t kBytesPerEvent = kMiB;
// A copy of this many bytes is started without waiting for its neighbours.
constexpr uint64_t kBytesPerCopy = 256 * kKiB;

// The primary context of a device, retained while in use.
struct Context {
  Context(std::shared_ptr<const Driver> its_driver, CuDevice its_device,
          CuContext its_handle)
      : driver(std::move(its_driver)), device(its_device), handle(its_handle) {}
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;
  ~Context() { (void)driver->call().DevicePrimaryCtxRelease(device); }

  const Functions& call() const { return driver->call(); }

  const std::shared_ptr<const Driver> driver;
  const CuDevice device;
  const CuContext handle;
};
using ContextPtr = std::shared_ptr<const Context>;

// A Current makes a context current on this thread during its lifetime.
class Current {
 public:
  explicit Current(const Context& context)
      : context_(context),
        status_(
            context.driver->Check(context.call().CtxPushCurrent(context.handle),
                                  "cuCtxPushCurrent")) {}
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    CuContext popped = nullptr;
    if (status_.ok()) (void)context_.call().CtxPopCurrent(&popped);
  }
  const Status& status() const { return status_; }

 private:
  const Context& context_;
  const Status status_;
};

// Pinned memory that was released. Allocating it takes about as long as filling
// it, and a load needs the same ring as the load before.
//
// The memory is populated in pages of the faster size and then registered. That
// takes a third of the time of cuMemHostAlloc(), which populates it in pages of
// 4 KiB: 32 MiB in 3.4 instead of 11 ms.
class PinnedPool : public std::enable_shared_from_this<PinnedPool> {
 public:
  explicit PinnedPool(ContextPtr context) : context_(std::move(context)) {}
  PinnedPool(const PinnedPool&) = delete;
  PinnedPool& operator=(const PinnedPool&) = delete;
  ~PinnedPool() {
    for (const Buffer& block : free_) Unpin(block);
  }

  // Returns memory of at least `bytes`, which returns to the pool with its last
  // owner.
  Result<Buffer> Take(uint64_t bytes) {
    Buffer block;
    {
      const std::lock_guard lock(mutex_);
      const auto found = std::ranges::find_if(
          free_,
          [&](const Buffer& candidate) { return candidate.size() >= bytes; });
      if (found != free_.end()) {
        block = std::move(*found);
        free_.erase(found);
        kept_ -= block.size();
      }
    }
    if (block.size() == 0) {
      HAULWAY_ASSIGN(block, Allocate(bytes));
    }
    const auto memory = block.mutable_bytes().first(bytes);
    std::shared_ptr<const void> owner(
        memory.data(), [pool = shared_from_this(), block = std::move(block)](
                           const void*) { pool->GiveBack(block); });
    return Buffer(std::move(owner), memory, /*writable=*/true);
  }

 private:
  Result<Buffer> Allocate(uint64_t bytes) const {
    const uint64_t rounded = bytes <= kMostPinnedKept
                                 ? std::max(std::bit_ceil(bytes), kLeastPinned)
                                 : bytes;
    HAULWAY_ASSIGN(FreshMemory memory, FreshMemory::Allocate(rounded));
    const std::span<std::byte> all = memory.buffer().mutable_bytes();
    constexpr uint64_t kUnit = FreshMemory::kUnitBytes;
    HAULWAY_TRY(ParallelFor(
        (rounded + kUnit - 1) / kUnit, kPopulating, [&](uint64_t unit) {
          const auto rest = all.subspan(unit * kUnit);
          memory.BringIn(rest.first(std::min<uint64_t>(rest.size(), kUnit)));
          return Status();
        }));
    // Otherwise, after a fork, a page that this process writes is replaced by a
    // copy, of which the device does not know. Fails only before Linux 2.6.16.
    (void)::madvise(all.data(), all.size(), MADV_DONTFORK);
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    Status status = context_->driver->Check(
        context_->call().MemHostRegister(all.data(), all.size(),
                                         kHostRegisterPortable),
        "cuMemHostRegister");
    if (!status.ok()) {
      return std::move(status).In(fmt::format("{} pinned bytes", bytes));
    }
    return memory.buffer();
  }

  void GiveBack(const Buffer& block) {
    {
      const std::lock_guard lock(mutex_);
      if (block.size() <= kMostPinnedKept - kept_) {
        free_.push_back(block);
        kept_ += block.size();
        return;
      }
    }
    Unpin(block);
  }

  // The caller then frees the memory.
  void Unpin(const Buffer& block) const {
    const Current its(*context_);
    (void)context_->call().MemHostUnregister(block.mutable_bytes().data());
  }

  const ContextPtr context_;
  std::mutex mutex_;
  std::vector<Buffer> free_ HAULWAY_GUARDED_BY(mutex_);
  uint64_t kept_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

class CopyQueue : public CudaDevice::Upload {
 public:
  CopyQueue(ContextPtr context, CuStream stream, size_t most)
      : context_(std::move(context)), stream_(stream), most_(most) {}
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  ~CopyQueue() override {
    const Current current(*context_);
    // The device may still be reading the kept Buffers.
    (void)context_->call().StreamSynchronize(stream_);
    for (const Copying& copy : under_way_) {
      if (copy.done != nullptr) (void)context_->call().EventDestroy(copy.done);
    }
    (void)context_->call().StreamDestroy(stream_);
  }

  Status Copy(const DeviceBuffer& to, uint64_t offset, Buffer bytes) override {
    assert(offset <= to.size && bytes.size() <= to.size - offset);
    if (bytes.size() == 0) return Status();
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    const std::lock_guard lock(mutex_);
    const std::shared_ptr<const void> owner = bytes.owner();
    const auto found = waiting_.find(owner);
    if (found != waiting_.end()) {
      Run& run = found->second;
      const bool follows = to.address + offset == run.to + run.size &&
                           bytes.data() == run.bytes.data() + run.size;
      if (follows) {
        run.size += bytes.size();
        return run.size < kBytesPerCopy ? Status() : StartAt(found);
      }
      HAULWAY_TRY(StartAt(found));
    }
    while (owners_.size() >= most_ && !owners_.contains(owner)) {
      HAULWAY_TRY(WaitForOldest());
    }
    ++owners_[owner];
    const uint64_t size = bytes.size();
    const auto run = waiting_.try_emplace(
        owner, Run{to.address + offset, size, std::move(bytes)});
    return size < kBytesPerCopy ? Status() : StartAt(run.first);
  }

  Status Finish() override {
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    const std::lock_guard lock(mutex_);
    HAULWAY_TRY(StartAll());
    HAULWAY_TRY(Check(context_->call().StreamSynchronize(stream_),
                      "cuStreamSynchronize"));
    while (!under_way_.empty()) HAULWAY_TRY(Forget());
    unmarked_ = 0;
    unmarked_bytes_ = 0;
    return Status();
  }

 private:
  // A copy that is not started yet: its neighbour may follow.
  struct Run {
    CuAddress to;
    uint64_t size;  // May go past `bytes`, whose owner has the neighbours too.
    Buffer bytes;
  };
  using Waiting = std::map<std::shared_ptr<const void>, Run, std::owner_less<>>;
  struct Copying {
    CuEvent done;  // For this copy and all before it; null for most.
    Buffer bytes;
  };

  Status Check(CuResult result, const char* function) const {
    return context_->driver->Check(result, function);
  }

  // Starts a copy that waits. Requires: the lock is held.
  Status StartAt(Waiting::iterator at) {
    Run run = std::move(at->second);
    waiting_.erase(at);
    // Kept from here on, even after a failure: the copy may have begun.
    under_way_.push_back({nullptr, std::move(run.bytes)});
    const Buffer& kept = under_way_.back().bytes;
    HAULWAY_TRY(Check(context_->call().MemcpyHtoDAsync(run.to, kept.data(),
                                                       run.size, stream_),
                      "cuMemcpyHtoDAsync"));
    unmarked_bytes_ += run.size;
    ++unmarked_;
    if (unmarked_ < kCopiesPerEvent && unmarked_bytes_ < kBytesPerEvent) {
      return Status();
    }
    return Mark();
  }

  // Requires: the lock is held.
  Status StartAll() {
    while (!waiting_.empty()) HAULWAY_TRY(StartAt(waiting_.begin()));
    return Status();
  }

  // Records an event after the last copy. Requires: the lock is held, and a
  // copy is running.
  Status Mark() {
    CuEvent done = nullptr;
    HAULWAY_TRY(Check(context_->call().EventCreate(&done, kEventDisableTiming),
                      "cuEventCreate"));
    under_way_.back().done = done;
    unmarked_ = 0;
    unmarked_bytes_ = 0;
    return Check(context_->call().EventRecord(done, stream_), "cuEventRecord");
  }

  // Starts what waits, and waits for the copies up to the first event.
  // Requires: the lock is held, and a Buffer is kept.
  Status WaitForOldest() {
    HAULWAY_TRY(StartAll());
    const auto marked = [](const Copying& copy) {
      return copy.done != nullptr;
    };
    auto first = std::ranges::find_if(under_way_, marked);
    if (first == under_way_.end()) {
      HAULWAY_TRY(Mark());
      first = std::prev(under_way_.end());
    }
    HAULWAY_TRY(Check(context_->call().EventSynchronize(first->done),
                      "cuEventSynchronize"));
    for (auto copies = first - under_way_.begin() + 1; copies > 0; --copies) {
      HAULWAY_TRY(Forget());
    }
    return Status();
  }

  // Releases the bytes of the oldest copy. Requires: the lock is held, and that
  // copy has ended.
  Status Forget() {
    const Copying oldest = std::move(under_way_.front());
    under_way_.pop_front();
    const auto owner = owners_.find(oldest.bytes.owner());
    if (--owner->second == 0) owners_.erase(owner);
    if (oldest.done == nullptr) return Status();
    return Check(context_->call().EventDestroy(oldest.done), "cuEventDestroy");
  }

  const ContextPtr context_;
  const CuStream stream_;
  const size_t most_;
  std::mutex mutex_;
  std::deque<Copying> under_way_ HAULWAY_GUARDED_BY(mutex_);
  // At most one for each owner.
  Waiting waiting_ HAULWAY_GUARDED_BY(mutex_);
  size_t unmarked_ HAULWAY_GUARDED_BY(mutex_) =
      0;  // Copies after the last event.
  uint64_t unmarked_bytes_ HAULWAY_GUARDED_BY(mutex_) = 0;
  // Number of copies from the memory of each owner, waiting or running.
  std::map<std::shared_ptr<const void>, size_t, std::owner_less<>> owners_
      HAULWAY_GUARDED_BY(mutex_);
};

class Device : public CudaDevice {
 public:
  Device(int ordinal, ContextPtr context)
      : ordinal_(ordinal),
        context_(std::move(context)),
        pinned_(std::make_shared<PinnedPool>(context_)) {}

  int ordinal() const override { return ordinal_; }

  Result<DeviceBuffer> Allocate(uint64_t bytes) const override {
    if (bytes == 0) return DeviceBuffer{.owner = nullptr, .ordinal = ordinal_};
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    CuAddress address = 0;
    Status status = context_->driver->Check(
        context_->call().MemAlloc(&address, bytes), "cuMemAlloc");
    if (!status.ok()) {
      return std::move(status).In(
          fmt::format("{} bytes on cuda:{}", bytes, ordinal_));
    }
    std::shared_ptr<const void> owner(
        nullptr, [context = context_, address](const void*) {
          const Current its(*context);
          // Fails at process exit, when the driver frees everything anyway.
          (void)context->call().MemFree(address);
        });
    return DeviceBuffer{std::move(owner), address, bytes, ordinal_};
  }

  Result<Buffer> AllocatePinned(uint64_t bytes) const override {
    if (bytes == 0) return Buffer();
    return pinned_->Take(bytes);
  }

  Result<std::unique_ptr<Upload>> StartUpload(size_t most) const override {
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    CuStream stream = nullptr;
    HAULWAY_TRY(context_->driver->Check(
        context_->call().StreamCreate(&stream, kStreamNonBlocking),
        "cuStreamCreate"));
    return std::unique_ptr<Upload>(
        std::make_unique<CopyQueue>(context_, stream, most));
  }

 private:
  const int ordinal_;
  const ContextPtr context_;
  const std::shared_ptr<PinnedPool> pinned_;
};

}  // namespace

}  // namespace cuda

Result<std::shared_ptr<const CudaDevice>> CudaDevice::Open(
    int ordinal, const std::string& driver_name) {
  HAULWAY_ASSIGN(const std::shared_ptr<const cuda::Driver> driver,
                 cuda::Driver::Load(driver_name));
  const cuda::Functions& call = driver->call();
  int count = 0;
  HAULWAY_TRY(driver->Check(call.DeviceGetCount(&count), "cuDeviceGetCount"));
  if (ordinal < 0 || ordinal >= count) {
    return Status(Code::kNotFound,
                  fmt::format("no GPU {}: expected below {}", ordinal, count));
  }
  cuda::CuDevice device = 0;
  HAULWAY_TRY(driver->Check(call.DeviceGet(&device, ordinal), "cuDeviceGet"));
  cuda::CuContext context = nullptr;
  HAULWAY_TRY(driver->Check(call.DevicePrimaryCtxRetain(&context, device),
                            "cuDevicePrimaryCtxRetain"));
  return std::shared_ptr<const CudaDevice>(std::make_shared<cuda::Device>(
      ordinal, std::make_shared<const cuda::Context>(driver, device, context)));
}

}  // namespace haulway
