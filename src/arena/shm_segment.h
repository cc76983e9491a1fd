// Memory that several processes map: an anonymous file.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway::arena {

// A ShmSegment is a mapped memfd, sealed against shrinking and, unless
// `may_grow`, growing. It has no name in any file system and does not need
// /dev/shm. The kernel frees it when the last process that holds it ends, for
// whatever reason.
class ShmSegment {
 public:
  struct Options {
    bool huge_pages = false;  // Ask for transparent huge pages.
    bool may_grow = false;    // Whether the file may grow later.
    // Allocate every page now rather than at first use.
    bool prefault = false;
    // If not 0, the bytes from here to the end are mapped again after the end,
    // so that a range may continue past it. A multiple of the page size.
    uint64_t mirror_from = 0;
  };

  // Creates a segment. `label`: the name shown in /proc. Fails with kLimit if
  // there is too little memory. Requires: `bytes` is a multiple of the page
  // size.
  static Result<std::shared_ptr<ShmSegment>> Create(const char* label,
                                                    uint64_t bytes,
                                                    const Options& options);
  // Maps a segment that another process created. Fails with kCorrupt if it has
  // fewer than `bytes` bytes or is not sealed against shrinking.
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

}  // namespace haulway::arena
