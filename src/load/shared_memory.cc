#include "load/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>

#include "base/checked.h"
#include "base/memory_file.h"
#include "base/page_bytes.h"
#include "base/thread_pool.h"
#include "haulway/options.h"

#ifndef MADV_POPULATE_WRITE  // Linux 5.14
#define MADV_POPULATE_WRITE 23
#endif

namespace haulway {

namespace {

constexpr uint64_t kHugePageBytes = 2 * kMiB;
constexpr uint64_t kTakenAtOnce = 32 * kMiB;

// A SharedMapping is unmapped when it goes out of scope.
class SharedMapping {
 public:
  SharedMapping(void* address, size_t bytes)
      : address_(address), bytes_(bytes) {}
  SharedMapping(const SharedMapping&) = delete;
  SharedMapping& operator=(const SharedMapping&) = delete;
  ~SharedMapping() { (void)::munmap(address_, bytes_); }

 private:
  void* const address_;
  const size_t bytes_;
};

// Populates every page now: if memory runs out, this fails; a later access
// would raise SIGBUS.
Status TakePages(int fd, uint64_t offset, std::span<std::byte> bytes,
                 int threads, const std::atomic<bool>* cancel) {
  const uint64_t parts = (bytes.size() + kTakenAtOnce - 1) / kTakenAtOnce;
  return ParallelFor(parts, threads, [&](uint64_t part) -> Status {
    if (cancel != nullptr && *cancel) {
      return Status(Code::kCancelled, "loading was cancelled");
    }
    const uint64_t begin = part * kTakenAtOnce;
    const uint64_t length =
        std::min<uint64_t>(kTakenAtOnce, bytes.size() - begin);
    int result = 0;
    do {
      result = ::madvise(bytes.data() + begin, length, MADV_POPULATE_WRITE);
    } while (result != 0 && (errno == EINTR || errno == EAGAIN));
    if (result == 0) return Status();
    if (errno != EINVAL) {
      return NoSharedMemory(ENOMEM, "", bytes.size());
    }
    // The kernel is older than 5.14.
    if (::fallocate(fd, 0, static_cast<off_t>(offset + begin),
                    static_cast<off_t>(length)) != 0) {
      return NoSharedMemory(errno, "cannot reserve shared memory",
                            bytes.size());
    }
    return Status();
  });
}

}  // namespace

Result<std::shared_ptr<const SealedMemory>> SealedMemory::Map(UniqueFd fd) {
  if (!IsSealed(fd.get())) {
    return Status(Code::kCorrupt, "the shared memory is not sealed");
  }
  struct stat facts;
  if (::fstat(fd.get(), &facts) != 0) {
    return Status::FromErrno(errno, "cannot stat shared memory");
  }
  const auto size = static_cast<uint64_t>(facts.st_size);
  if (size == 0) return Status(Code::kTruncated, "the shared memory is empty");
  // The descriptor is read-only, so mprotect() cannot make the mapping
  // writable.
  void* address =
      ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd.get(), /*offset=*/0);
  if (address == MAP_FAILED) {
    return NoSharedMemory(errno, "cannot map shared memory", size);
  }
  // Only a hint: without huge pages, small ones are used.
  (void)::madvise(address, size, MADV_HUGEPAGE);
  return std::shared_ptr<const SealedMemory>(new SealedMemory(
      std::move(fd), {static_cast<std::byte*>(address), size}));
}

SealedMemory::~SealedMemory() { (void)::munmap(bytes_.data(), bytes_.size()); }

Result<std::shared_ptr<MemoryFileFiller>> MemoryFileFiller::Create(
    const std::string& label, uint64_t header_bytes) {
  HAULWAY_ASSIGN(UniqueFd fd, CreateMemoryFile(label));
  if (::ftruncate(fd.get(), static_cast<off_t>(header_bytes)) != 0) {
    return NoSharedMemory(errno, "cannot size shared memory", header_bytes);
  }
  return std::shared_ptr<MemoryFileFiller>(
      new MemoryFileFiller(std::move(fd), header_bytes));
}

Result<uint64_t> MemoryFileFiller::Grow(uint64_t bytes, uint64_t alignment) {
  uint64_t offset = 0;
  uint64_t end = 0;
  if (!CheckedRoundUp(size_, alignment, &offset) ||
      !CheckedAdd(offset, bytes, &end) ||
      !CheckedRoundUp(end, PageBytes(), &end) ||
      end > static_cast<uint64_t>(INT64_MAX)) {
    return NoSharedMemory(ENOMEM, "", bytes);
  }
  if (::ftruncate(fd_.get(), static_cast<off_t>(end)) != 0) {
    return NoSharedMemory(errno, "cannot size shared memory", bytes);
  }
  size_ = end;
  return offset;
}

Result<Buffer> MemoryFileFiller::Allocate(uint64_t bytes, int threads,
                                          const std::atomic<bool>* cancel) {
  if (bytes == 0) return Buffer();
  uint64_t offset = 0;
  std::span<std::byte> mapped;
  std::shared_ptr<const void> owner;
  {
    const std::lock_guard lock(mutex_);
    const uint64_t alignment =
        bytes < kHugePageBytes ? PageBytes() : kHugePageBytes;
    HAULWAY_ASSIGN(offset, Grow(bytes, alignment));
    const uint64_t length = size_ - offset;
    void* address = ::mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED,
                           fd_.get(), static_cast<off_t>(offset));
    if (address == MAP_FAILED) {
      return NoSharedMemory(errno, "cannot map shared memory", bytes);
    }
    owner = std::make_shared<const SharedMapping>(address, length);
    mapped = {static_cast<std::byte*>(address), length};
    regions_.push_back({mapped, offset, owner});
  }
  // A mapping inherited by a child process would prevent sealing.
  if (::madvise(mapped.data(), mapped.size(), MADV_DONTFORK) != 0) {
    return Status::FromErrno(errno, "cannot keep memory from child processes");
  }
  // Only a hint: without huge pages, small ones are used.
  (void)::madvise(mapped.data(), mapped.size(), MADV_HUGEPAGE);
  HAULWAY_TRY(TakePages(fd_.get(), offset, mapped, threads, cancel));
  return Buffer(std::move(owner), mapped.subspan(0, bytes), /*writable=*/true);
}

std::optional<uint64_t> MemoryFileFiller::OffsetOf(const Buffer& bytes) const {
  const std::lock_guard lock(mutex_);
  const std::less_equal<const std::byte*> no_later;
  for (const Region& region : regions_) {
    const std::byte* begin = region.bytes.data();
    const std::byte* end = begin + region.bytes.size();
    if (no_later(begin, bytes.data()) &&
        no_later(bytes.data() + bytes.size(), end)) {
      return region.offset + static_cast<uint64_t>(bytes.data() - begin);
    }
  }
  return std::nullopt;
}

Result<uint64_t> MemoryFileFiller::Append(std::span<const std::byte> bytes) {
  const std::lock_guard lock(mutex_);
  HAULWAY_ASSIGN(const uint64_t offset, Grow(bytes.size(), PageBytes()));
  HAULWAY_TRY(WriteFully(fd_.get(), offset, {{bytes}}));
  return offset;
}

Result<uint64_t> MemoryFileFiller::AppendZeros(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  return Grow(bytes, PageBytes());
}

Status MemoryFileFiller::WriteHeader(std::span<const std::byte> bytes) {
  return WriteFully(fd_.get(), 0, {{bytes}});
}

Result<UniqueFd> MemoryFileFiller::Finish() && {
  regions_.clear();
  HAULWAY_TRY(SealMemoryFile(fd_.get()));
  return ReopenForReading(fd_.get());
}

}  // namespace haulway
