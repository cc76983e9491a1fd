#include "arena/mapped_range.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <cerrno>

#include "base/checked.h"
#include "base/memory_file.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace haulway::arena {

Status TakePages(int fd, uint64_t offset, std::byte* data, uint64_t bytes) {
  if (::fallocate(fd, 0, static_cast<off_t>(offset),
                  static_cast<off_t>(bytes)) != 0) {
    return NoSharedMemory(errno, "cannot reserve shared memory", bytes);
  }
  // Older kernels lack MADV_POPULATE_WRITE; then pages are mapped at first use.
  (void)::madvise(data, bytes, MADV_POPULATE_WRITE);
  return Status();
}

void* ReserveAddresses(uint64_t bytes, uint64_t phase) {
  const uint64_t slack = bytes < kHugePage ? 0 : kHugePage;
  void* start = ::mmap(nullptr, bytes + slack, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED || slack == 0) return start;
  auto* base = static_cast<std::byte*>(start);
  const uint64_t before = (kHugePage + phase % kHugePage -
                           reinterpret_cast<uintptr_t>(base) % kHugePage) %
                          kHugePage;
  if (before > 0) (void)::munmap(base, before);
  if (before < slack) (void)::munmap(base + before + bytes, slack - before);
  return base + before;
}

Result<std::shared_ptr<MappedRange>> MappedRange::Map(int fd, uint64_t offset,
                                                      uint64_t bytes) {
  uint64_t reserved = 0;
  uint64_t end = 0;
  if (!CheckedAdd(bytes, kHugePage, &reserved) ||
      !CheckedAdd(offset, bytes, &end) ||
      end > static_cast<uint64_t>(INT64_MAX)) {
    return NoSharedMemory(EFBIG, "cannot map shared memory", bytes);
  }
  void* base = ReserveAddresses(bytes, offset);
  if (base == MAP_FAILED) {
    return NoSharedMemory(errno, "cannot map shared memory", bytes);
  }
  if (::mmap(base, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd,
             static_cast<off_t>(offset)) == MAP_FAILED) {
    const int os_error = errno;
    (void)::munmap(base, bytes);
    return NoSharedMemory(os_error, "cannot map shared memory", bytes);
  }
  if (bytes >= kHugePage) (void)::madvise(base, bytes, MADV_HUGEPAGE);
  return std::shared_ptr<MappedRange>(
      new MappedRange(offset, static_cast<std::byte*>(base), bytes));
}

MappedRange::~MappedRange() { (void)::munmap(data_, size_); }

}  // namespace haulway::arena
