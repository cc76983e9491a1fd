// The memory of a GPU, by CUDA's driver.
//
// The driver is loaded when a device is opened; without one, or without a GPU,
// that fails and all else works. Memory belongs to the device's primary
// context, which is the one that torch and CUDA's runtime use.
//
// Threads: every const method may be called from many threads at once. A
// process made by fork() cannot use what its parent opened.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "haulway/buffer.h"
#include "haulway/export.h"
#include "haulway/status.h"

namespace haulway {

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
