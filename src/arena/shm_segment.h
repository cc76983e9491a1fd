// Memory that several processes map: an anonymous file of the kernel's.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway::arena {

// A ShmSegment is a mapped memfd, sealed so that it cannot shrink, nor grow
// unless it may. It has no name in any file system and needs no /dev/shm: the
// kernel frees it when the last process that holds it is gone, however it ends.
class ShmSegment {
 public:
  struct Options {
    bool huge_pages = false;  // Ask for transparent huge pages.
    bool may_grow = false;    // The file may become larger later.
    bool prefault = false;    // Take every page now rather than at first use.
    // If not 0: the bytes from here to the end are mapped a second time after
    // the end, so that a range may run past it. A multiple of the page size.
    uint64_t mirror_from = 0;
  };

  // Requires: bytes is a multiple of the page size. kLimit where the system
  // has no such memory. `label` is what /proc shows of it.
  static Result<std::shared_ptr<ShmSegment>> Create(const char* label,
                                                    uint64_t bytes,
                                                    const Options& options);
  // Maps a descriptor that another process made. kCorrupt if it is not of at
  // least `bytes` bytes or could still shrink under the mapping.
  static Result<std::shared_ptr<ShmSegment>> Attach(UniqueFd fd, uint64_t bytes,
                                                    const Options& options);

  ShmSegment(const ShmSegment&) = delete;
  ShmSegment& operator=(const ShmSegment&) = delete;
  ~ShmSegment();

  int fd() const { return fd_.get(); }
  std::byte* data() const { return data_; }
  uint64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

 private:
  ShmSegment(UniqueFd fd, std::byte* data, uint64_t size, uint64_t mapped)
      : fd_(std::move(fd)), data_(data), size_(size), mapped_(mapped) {}
  static Result<std::shared_ptr<ShmSegment>> Map(UniqueFd fd, uint64_t bytes,
                                                 const Options& options);

  UniqueFd fd_;
  std::byte* data_;
  uint64_t size_;
  uint64_t mapped_;
};

uint64_t PageBytes();

}  // namespace haulway::arena
