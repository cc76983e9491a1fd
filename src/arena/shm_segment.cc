#include "arena/shm_segment.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/checked.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE  // Linux 6.1
#define MADV_COLLAPSE 25
#endif

namespace haulway::arena {

namespace {

constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Status Failed(int os_error, const char* what, uint64_t bytes) {
  if (os_error == ENOMEM || os_error == ENOSPC || os_error == EFBIG) {
    return Status(Code::kLimit,
                  fmt::format("no memory to share: {} bytes wanted", bytes));
  }
  return Status::FromErrno(os_error, what);
}

// Fails where the system cannot give the pages, instead of a SIGBUS later.
Status TakePages(int fd, std::byte* data, uint64_t bytes) {
  if (::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) != 0) {
    return Failed(errno, "cannot reserve shared memory", bytes);
  }
  // Older kernels do not know it; then pages are mapped at first use.
  (void)::madvise(data, bytes, MADV_POPULATE_WRITE);
  return Status();
}

// Reserves addresses. They begin at a multiple of a huge page where there is
// room for one: only then can the kernel map one.
void* Reserve(uint64_t bytes) {
  const uint64_t slack = bytes < kHugePage ? 0 : kHugePage;
  void* start = ::mmap(nullptr, bytes + slack, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (start == MAP_FAILED || slack == 0) return start;
  auto* base = static_cast<std::byte*>(start);
  const uint64_t before =
      (kHugePage - reinterpret_cast<uintptr_t>(base) % kHugePage) % kHugePage;
  if (before > 0) (void)::munmap(base, before);
  if (before < slack) (void)::munmap(base + before + bytes, slack - before);
  return base + before;
}

}  // namespace

uint64_t PageBytes() { return static_cast<uint64_t>(::sysconf(_SC_PAGESIZE)); }

Result<std::shared_ptr<ShmSegment>> ShmSegment::Create(const char* label,
                                                       uint64_t bytes,
                                                       const Options& options) {
  UniqueFd fd(::memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) {
    return Failed(errno, "cannot create shared memory", bytes);
  }
  if (bytes > static_cast<uint64_t>(INT64_MAX) ||
      ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return Failed(bytes > static_cast<uint64_t>(INT64_MAX) ? EFBIG : errno,
                  "cannot size shared memory", bytes);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return Failed(errno, "cannot seal shared memory", bytes);
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
    return Failed(EFBIG, "cannot map shared memory", bytes);
  }
  // One reservation, so that the mirror can follow at once.
  void* base = Reserve(total);
  if (base == MAP_FAILED) {
    return Failed(errno, "cannot map shared memory", bytes);
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
    return Failed(errno, "cannot map shared memory", bytes);
  }
  // Only a hint: without it there are small pages.
  if (options.huge_pages) (void)::madvise(data, total, MADV_HUGEPAGE);
  if (options.prefault) HAULWAY_TRY(TakePages(fd_number, data, bytes));
  // Many systems give shared memory no huge pages unless told like this.
  if (options.huge_pages && options.prefault) {
    (void)::madvise(data, bytes, MADV_COLLAPSE);
  }
  return segment;
}

ShmSegment::~ShmSegment() { (void)::munmap(data_, mapped_); }

}  // namespace haulway::arena
