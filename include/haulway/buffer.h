// Memory: runs of bytes that are shared, vectors that grow long, and the memory
// of GPUs.

#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/status.h"

namespace haulway {

// A Buffer is a run of bytes in memory together with a share in its ownership.
//
// Copying it copies no bytes. The memory lives until the last Buffer that was
// made from it is gone, whatever happens to the objects it came from.
// Threads: as for std::shared_ptr.
class HAULWAY_EXPORT Buffer {
 public:
  Buffer() = default;
  // `owner` keeps `bytes` alive. `writable` says whether bytes may be changed
  // by whoever holds the Buffer; false for memory the library borrowed.
  Buffer(std::shared_ptr<const void> owner, std::span<std::byte> bytes,
         bool writable)
      : owner_(std::move(owner)), bytes_(bytes), writable_(writable) {}

  const std::byte* data() const { return bytes_.data(); }
  uint64_t size() const { return bytes_.size(); }
  bool writable() const { return writable_; }
  std::span<const std::byte> bytes() const { return bytes_; }
  // Requires: writable().
  std::span<std::byte> mutable_bytes() const {
    assert(writable_);
    return bytes_;
  }
  const std::shared_ptr<const void>& owner() const { return owner_; }

  // A Buffer of a part. Requires: the range lies within size().
  Buffer Slice(uint64_t offset, uint64_t length) const {
    assert(offset <= size() && length <= size() - offset);
    return Buffer(owner_, bytes_.subspan(offset, length), writable_);
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<std::byte> bytes_;
  bool writable_ = false;
};

// Memory for tensors: zeroed, aligned to 2 MiB if it is as large, in huge pages
// where those cost no more than small ones. Fails with kLimit if there is none.
HAULWAY_EXPORT Result<Buffer> AllocateBuffer(uint64_t bytes);

// Copies runs of bytes into one allocation, on several threads; the result is
// parallel to `parts`. Each part is aligned to 64. `threads` of 0 are as many
// as the machine lets this process use.
HAULWAY_EXPORT Result<std::vector<Buffer>> CopyToBuffers(
    std::span<const std::span<const std::byte>> parts, int threads);

// Memory for `bytes`, aligned for anything; null if the system has none. Goes
// back by FreeLong() with the same size.
HAULWAY_EXPORT void* AllocateLong(size_t bytes);
HAULWAY_EXPORT void FreeLong(void* memory, size_t bytes);

template <class T>
class LongAllocator {
 public:
  using value_type = T;
  LongAllocator() = default;
  template <class Other>
  LongAllocator(const LongAllocator<Other>&) {}

  // Throws std::bad_alloc, as allocators must.
  T* allocate(size_t count) {
    void* memory = nullptr;
    if (count <= std::numeric_limits<size_t>::max() / sizeof(T)) {
      memory = AllocateLong(count * sizeof(T));
    }
    if (memory == nullptr) throw std::bad_alloc();
    return static_cast<T*>(memory);
  }
  void deallocate(T* memory, size_t count) {
    FreeLong(memory, count * sizeof(T));
  }
  friend bool operator==(const LongAllocator&, const LongAllocator&) {
    return true;
  }
};

// A LongVector is a std::vector whose memory is of huge pages once it is long,
// where the system gives them: as small pages, getting that memory takes
// several times as long as filling it.
template <class T>
using LongVector = std::vector<T, LongAllocator<T>>;

// The memory of a GPU, by CUDA's driver, which is loaded when a device is
// opened; without one, or without a GPU, that fails and all else works. Memory
// belongs to the device's primary context, which is the one that torch and
// CUDA's runtime use.
//
// A DeviceBuffer is a run of bytes in a GPU's memory together with a share in
// its ownership, as a Buffer is in the host's.
struct DeviceBuffer {
  std::shared_ptr<const void> owner;
  uint64_t address = 0;  // For the device only.
  uint64_t size = 0;
  int ordinal = 0;  // Of the device.
};

class HAULWAY_EXPORT CudaDevice {
 public:
  // Fails with kUnsupported if there is no driver or no GPU, kNotFound if
  // there are fewer GPUs than that, else kIoError.
  static Result<std::shared_ptr<const CudaDevice>> Open(
      int ordinal, const std::string& driver = "libcuda.so.1");
  virtual ~CudaDevice() = default;

  virtual int ordinal() const = 0;
  // Memory of the device, aligned to 256. Fails with kLimit if it has none.
  virtual Result<DeviceBuffer> Allocate(uint64_t bytes) const = 0;
  // Memory of the host from which it can be copied without going through the
  // driver's own. Fails with kLimit if the system grants none.
  virtual Result<Buffer> AllocatePinned(uint64_t bytes) const = 0;

  // An Upload copies to the device. Several threads may use one at once.
  class HAULWAY_EXPORT Upload {
   public:
    virtual ~Upload() = default;  // Waits for the device.
    // Starts to copy `bytes` to `offset` of `to`, and keeps them until that is
    // done. Waits for the oldest copies where too much is kept.
    // Requires: the range lies within `to`.
    virtual Status Copy(const DeviceBuffer& to, uint64_t offset,
                        Buffer bytes) = 0;
    // Waits until everything is copied and nothing is kept.
    virtual Status Finish() = 0;
  };
  // Keeps Buffers of at most `most` owners. Requires: most > 0.
  virtual Result<std::unique_ptr<Upload>> StartUpload(size_t most) const = 0;
};

}  // namespace haulway
