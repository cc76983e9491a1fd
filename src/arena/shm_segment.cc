#include "arena/shm_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "arena/mapped_range.h"
#include "base/checked.h"
#include "base/memory_file.h"

#ifndef MADV_COLLAPSE  // Linux 6.1
#define MADV_COLLAPSE 25
#endif

namespace haulway::arena {

namespace {

int Seals(const ShmSegment::Options& options) {
  return F_SEAL_SHRINK | F_SEAL_SEAL | (options.may_grow ? 0 : F_SEAL_GROW);
}

}  // namespace

Result<std::shared_ptr<ShmSegment>> ShmSegment::Create(const char* label,
                                                       uint64_t bytes,
                                                       const Options& options) {
  UniqueFd fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) {
    return NoSharedMemory(errno, "cannot create shared memory", bytes);
  }
  if (bytes > static_cast<uint64_t>(INT64_MAX) ||
      ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return NoSharedMemory(
        bytes > static_cast<uint64_t>(INT64_MAX) ? EFBIG : errno,
        "cannot size shared memory", bytes);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, Seals(options)) != 0) {
    return NoSharedMemory(errno, "cannot seal shared memory", bytes);
  }
  return Map(std::move(fd), bytes, options);
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::Attach(UniqueFd fd,
                                                       uint64_t bytes,
                                                       const Options& options) {
  struct stat facts;
  if (::fstat(fd.get(), &facts) != 0) {
    return Status::FromErrno(errno, "cannot stat shared memory");
  }
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kCorrupt,
                  "shared memory is not sealed against shrinking");
  }
  if (static_cast<uint64_t>(facts.st_size) < bytes) {
    return Status(Code::kCorrupt,
                  fmt::format("shared memory is too small: expected {} bytes, "
                              "found {}",
                              bytes, facts.st_size));
  }
  return Map(std::move(fd), bytes, options);
}

Result<std::shared_ptr<ShmSegment>> ShmSegment::Map(UniqueFd fd, uint64_t bytes,
                                                    const Options& options) {
  const uint64_t mirrored =
      options.mirror_from == 0 ? 0 : bytes - options.mirror_from;
  uint64_t total = 0;
  uint64_t reserved = 0;
  if (!CheckedAdd(bytes, mirrored, &total) ||
      !CheckedAdd(total, kHugePage, &reserved)) {
    return NoSharedMemory(EFBIG, "cannot map shared memory", bytes);
  }
  // One reservation, so that the mirror directly follows.
  void* base = ReserveAddresses(total, 0);
  if (base == MAP_FAILED) {
    return NoSharedMemory(errno, "cannot map shared memory", bytes);
  }
  auto* data = static_cast<std::byte*>(base);
  const int fd_number = fd.get();
  std::shared_ptr<ShmSegment> segment(
      new ShmSegment(std::move(fd), data, bytes, total));
  constexpr int kAccess = PROT_READ | PROT_WRITE;
  if (::mmap(data, bytes, kAccess, MAP_SHARED | MAP_FIXED, fd_number, 0) ==
          MAP_FAILED ||
      (mirrored != 0 &&
       ::mmap(data + bytes, mirrored, kAccess, MAP_SHARED | MAP_FIXED,
              fd_number,
              static_cast<off_t>(options.mirror_from)) == MAP_FAILED)) {
    return NoSharedMemory(errno, "cannot map shared memory", bytes);
  }
  // Only a hint: without huge pages, small ones are used.
  if (options.huge_pages) (void)::madvise(data, total, MADV_HUGEPAGE);
  if (options.prefault) HAULWAY_TRY(TakePages(fd_number, 0, data, bytes));
  // Many systems give shared memory huge pages only after this call.
  if (options.huge_pages && options.prefault) {
    (void)::madvise(data, bytes, MADV_COLLAPSE);
  }
  return segment;
}

ShmSegment::~ShmSegment() { (void)::munmap(data_, mapped_); }

}  // namespace haulway::arena
