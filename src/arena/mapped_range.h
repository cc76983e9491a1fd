// A mapped part of a shared file.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "haulway/status.h"

namespace haulway::arena {

inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

// Reserves addresses that begin `phase` bytes after a multiple of a huge page,
// if `bytes` is at least a huge page: only then can the kernel map huge pages.
// Returns MAP_FAILED and sets errno on failure.
void* ReserveAddresses(uint64_t bytes, uint64_t phase);
// Allocates pages of a file. Fails if the system has too little memory, which
// would raise SIGBUS later. `offset`: the file offset of `data`.
Status TakePages(int fd, uint64_t offset, std::byte* data, uint64_t bytes);

class MappedRange {
 public:
  // Maps a range of a file that cannot shrink below its end, with huge pages if
  // available. Requires: `offset` and `bytes` are multiples of the page size.
  static Result<std::shared_ptr<MappedRange>> Map(int fd, uint64_t offset,
                                                  uint64_t bytes);
  MappedRange(const MappedRange&) = delete;
  MappedRange& operator=(const MappedRange&) = delete;
  ~MappedRange();

  uint64_t offset() const { return offset_; }
  uint64_t size() const { return size_; }
  std::byte* data() const { return data_; }

 private:
  MappedRange(uint64_t offset, std::byte* data, uint64_t size)
      : offset_(offset), data_(data), size_(size) {}

  uint64_t offset_;
  std::byte* data_;
  uint64_t size_;
};

}  // namespace haulway::arena
