#include <fmt/format.h>

#include <cassert>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "device/cuda_driver.h"
#include "haulway/buffer.h"

namespace haulway {

namespace cuda {

namespace {

// The primary context of a device, for as long as anything uses it.
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

// A Current makes a context that of this thread, until it goes out of scope.
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

class CopyQueue : public CudaDevice::Upload {
 public:
  CopyQueue(ContextPtr context, CuStream stream, size_t most)
      : context_(std::move(context)), stream_(stream), most_(most) {}
  CopyQueue(const CopyQueue&) = delete;
  CopyQueue& operator=(const CopyQueue&) = delete;
  ~CopyQueue() override {
    const Current current(*context_);
    // The device may still read what is kept.
    (void)context_->call().StreamSynchronize(stream_);
    for (const Copying& copy : under_way_) {
      (void)context_->call().EventDestroy(copy.done);
    }
    (void)context_->call().StreamDestroy(stream_);
  }

  Status Copy(const DeviceBuffer& to, uint64_t offset, Buffer bytes) override {
    assert(offset <= to.size && bytes.size() <= to.size - offset);
    if (bytes.size() == 0) return Status();
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    const Functions& call = context_->call();
    const std::lock_guard lock(mutex_);
    while (owners_.size() >= most_ && !owners_.contains(bytes.owner())) {
      HAULWAY_TRY(WaitForOldest());
    }
    CuEvent done = nullptr;
    HAULWAY_TRY(
        Check(call.EventCreate(&done, kEventDisableTiming), "cuEventCreate"));
    // Kept from here on, whatever comes: the copy may have begun.
    ++owners_[bytes.owner()];
    under_way_.push_back({done, std::move(bytes)});
    const Buffer& kept = under_way_.back().bytes;
    HAULWAY_TRY(Check(call.MemcpyHtoDAsync(to.address + offset, kept.data(),
                                           kept.size(), stream_),
                      "cuMemcpyHtoDAsync"));
    return Check(call.EventRecord(done, stream_), "cuEventRecord");
  }

  Status Finish() override {
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    const std::lock_guard lock(mutex_);
    HAULWAY_TRY(Check(context_->call().StreamSynchronize(stream_),
                      "cuStreamSynchronize"));
    while (!under_way_.empty()) HAULWAY_TRY(WaitForOldest());
    return Status();
  }

 private:
  struct Copying {
    CuEvent done;
    Buffer bytes;
  };

  Status Check(CuResult result, const char* function) const {
    return context_->driver->Check(result, function);
  }

  // Requires: the lock is held, and a copy is under way.
  Status WaitForOldest() {
    const CuEvent done = under_way_.front().done;
    HAULWAY_TRY(
        Check(context_->call().EventSynchronize(done), "cuEventSynchronize"));
    const auto owner = owners_.find(under_way_.front().bytes.owner());
    if (--owner->second == 0) owners_.erase(owner);
    under_way_.pop_front();
    return Check(context_->call().EventDestroy(done), "cuEventDestroy");
  }

  const ContextPtr context_;
  const CuStream stream_;
  const size_t most_;
  std::mutex mutex_;
  std::deque<Copying> under_way_ HAULWAY_GUARDED_BY(mutex_);
  // How many copies are under way from the memory of each owner.
  std::map<std::shared_ptr<const void>, size_t, std::owner_less<>> owners_
      HAULWAY_GUARDED_BY(mutex_);
};

class Device : public CudaDevice {
 public:
  Device(int ordinal, ContextPtr context)
      : ordinal_(ordinal), context_(std::move(context)) {}

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
          // Fails at the end of the process, when all is freed anyway.
          (void)context->call().MemFree(address);
        });
    return DeviceBuffer{std::move(owner), address, bytes, ordinal_};
  }

  Result<Buffer> AllocatePinned(uint64_t bytes) const override {
    if (bytes == 0) return Buffer();
    const Current current(*context_);
    HAULWAY_TRY(current.status());
    void* address = nullptr;
    Status status = context_->driver->Check(
        context_->call().MemHostAlloc(&address, bytes, kHostAllocPortable),
        "cuMemHostAlloc");
    if (!status.ok()) {
      return std::move(status).In(fmt::format("{} pinned bytes", bytes));
    }
    std::shared_ptr<const void> owner(
        address, [context = context_](const void* pinned) {
          const Current its(*context);
          (void)context->call().MemFreeHost(const_cast<void*>(pinned));
        });
    return Buffer(std::move(owner), {static_cast<std::byte*>(address), bytes},
                  /*writable=*/true);
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
