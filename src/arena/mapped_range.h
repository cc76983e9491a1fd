// A mapped part of a shared file.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "haulway/status.h"

namespace haulway::arena {

inline constexpr uint64_t kHugePage = uint64_t{2} << 20;

// Reserves addresses that begin `phase` bytes after a multiple of a huge page,
// where there is room for one: only then can the kernel map one. MAP_FAILED
// with errno set.
void* ReserveAddresses(uint64_t bytes, uint64_t phase);
// Fails where the system cannot give the pages, instead of a SIGBUS later.
// `offset` is that of `data` in the file.
Status TakePages(int fd, uint64_t offset, std::byte* data, uint64_t bytes);
Status NoSharedMemory(int os_error, const char* what, uint64_t bytes);

class MappedRange {
 public:
  // Maps bytes of a file that cannot shrink below them, with huge pages where
  // the kernel has some. Requires: both are multiples of the page size.
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
