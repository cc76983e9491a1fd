// Memory: shared runs of bytes, allocation of long vectors, and GPU memory.

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
// Copying a Buffer does not copy the bytes. The memory lives until the last
// Buffer made from it is destroyed, even if the object that it came from is
// destroyed earlier.
// Threads: as for std::shared_ptr.
class HAULWAY_EXPORT Buffer {
 public:
  Buffer() = default;
  // `owner` keeps `bytes` alive. `writable` says whether holders of the Buffer
  // may change the bytes; it is false for memory that the library borrows.
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

  // Returns a Buffer of a part. Requires: the range lies within size().
  Buffer Slice(uint64_t offset, uint64_t length) const {
    assert(offset <= size() && length <= size() - offset);
    return Buffer(owner_, bytes_.subspan(offset, length), writable_);
  }

 private:
  std::shared_ptr<const void> owner_;
  std::span<std::byte> bytes_;
  bool writable_ = false;
};

// Allocates zeroed memory for tensors. Memory of 2 MiB or more is aligned to 2
// MiB and uses huge pages if they cost no more than small ones. Fails with
// kLimit if there is not enough memory.
HAULWAY_EXPORT Result<Buffer> AllocateBuffer(uint64_t bytes);

// Copies runs of bytes into one allocation, on several threads. The result is
// parallel to `parts`; each part is aligned to 64 bytes. If `threads` is 0, as
// many threads are used as this process may use.
HAULWAY_EXPORT Result<std::vector<Buffer>> CopyToBuffers(
    std::span<const std::span<const std::byte>> parts, int threads);

// Returns memory for `bytes`, aligned for any type, or null if the system has
// none. Free it with FreeLong() and the same size.
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

// A LongVector is a std::vector that uses huge pages once it is long, where the
// system offers them. With small pages, getting the memory takes several times
// as long as filling it.
template <class T>
using LongVector = std::vector<T, LongAllocator<T>>;

// GPU memory, through CUDA's driver, which is loaded when a device is opened.
// Without a driver or a GPU, opening a device fails; everything else works.
// Memory belongs to the device's primary context, which torch and CUDA's
// runtime use as well.
//
// A DeviceBuffer is a run of bytes in a GPU's memory together with a share in
// its ownership, as a Buffer is for host memory.
struct DeviceBuffer {
  std::shared_ptr<const void> owner;
  uint64_t address = 0;  // Valid on the device only.
  uint64_t size = 0;
  int ordinal = 0;  // The number of the device.
};

class HAULWAY_EXPORT CudaDevice {
 public:
  // Fails with kUnsupported if there is no driver or no GPU, with kNotFound if
  // there is no GPU with this number, otherwise with kIoError.
  static Result<std::shared_ptr<const CudaDevice>> Open(
      int ordinal, const std::string& driver = "libcuda.so.1");
  virtual ~CudaDevice() = default;

  virtual int ordinal() const = 0;
  // Allocates device memory, aligned to 256 bytes. Fails with kLimit if there
  // is not enough.
  virtual Result<DeviceBuffer> Allocate(uint64_t bytes) const = 0;
  // Allocates pinned host memory, which is copied to the device without a
  // staging buffer of the driver. Fails with kLimit if the system grants none.
  virtual Result<Buffer> AllocatePinned(uint64_t bytes) const = 0;

  // An Upload copies to the device. Several threads may use one Upload at once.
  class HAULWAY_EXPORT Upload {
   public:
    virtual ~Upload() = default;  // Waits for the device.
    // Copies `bytes` to `to` at `offset`, at the latest in Finish(), and keeps
    // `bytes` until then. If too many Buffers are kept, waits for the oldest.
    // Requires: the range lies within `to`.
    virtual Status Copy(const DeviceBuffer& to, uint64_t offset,
                        Buffer bytes) = 0;
    // Waits until all copies are done and no Buffer is kept.
    virtual Status Finish() = 0;
  };
  // Starts an Upload that keeps Buffers of at most `most` owners. Requires:
  // most > 0.
  virtual Result<std::unique_ptr<Upload>> StartUpload(size_t most) const = 0;
};

}  // namespace haulway
