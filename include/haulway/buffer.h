// A Buffer is a run of bytes in memory together with a share in its ownership.
//
// Copying it copies no bytes. The memory lives until the last Buffer that was
// made from it is gone, whatever happens to the objects it came from.
// Threads: as for std::shared_ptr.

#pragma once

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "haulway/export.h"
#include "haulway/status.h"

namespace haulway {

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

}  // namespace haulway
