// Design: a snapshot is a private mapping of a file under a read lease
// (lease_keeper.h). When a process is about to change the file, the kernel
// blocks that process while the mapped data is replaced by memory at the same
// addresses:
//
//   1. Several threads read the file's bytes into new memory elsewhere.
//   2. A few pages at a time are write-protected; a thread that writes there
//      waits (write_hold.h). Pages that were written to since the load, which
//      /proc/self/pagemap tells apart from pages of the file, are copied over
//      the bytes that were read.
//   3. One mremap(2) puts the new pages in place of these. The threads that
//      wait continue.
//
// So a write is either in its page before that page is copied, or goes to the
// new page. A system call that writes to pages that are just replaced fails
// with EFAULT.
//
// Tried instead: stopping all threads by ptrace(2) from a process that shares
// the memory, which needs rights that a process may not have or may have given
// up, and fails while a debugger or a thread in vfork(2) is there; breaking
// copy-on-write in place (MADV_POPULATE_WRITE), but
// truncating a file also removes private copies of its pages, which only a
// mapping of something else survives; moving pages (UFFDIO_MOVE) and protecting
// them (UFFDIO_WRITEPROTECT), which do not work for private mappings of files.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <mutex>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/no_memory.h"
#include "base/page_bytes.h"
#include "base/posix.h"
#include "base/thread_pool.h"
#include "base/write_hold.h"
#include "haulway/machine.h"
#include "haulway/options.h"
#include "io/file_system.h"
#include "io/lease_keeper.h"
#include "io/local_source.h"
#include "io/page_cache.h"

namespace haulway {

namespace {

constexpr uint64_t kHugePage = 2 * kMiB;
constexpr uint64_t kReadBytes = 4 * kMiB;  // Read by one thread at once.
// The size that is replaced at once, and the smallest piece to allocate memory
// for.
constexpr uint64_t kStep = 256 * kKiB;
// Freeing fewer bytes early is not worth a system call.
constexpr uint64_t kReclaimBytes = 1 * kMiB;
// Bits of /proc/PID/pagemap entries (Documentation/admin-guide/mm/pagemap.rst).
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

uint64_t PageBelow(uint64_t offset) { return offset & ~(PageBytes() - 1); }
uint64_t PageAbove(uint64_t offset) {
  return PageBelow(offset + PageBytes() - 1);
}

// Returns the ranges extended to whole pages, sorted and merged.
std::vector<ByteRange> WholePages(std::vector<ByteRange> ranges) {
  std::ranges::sort(ranges, {}, &ByteRange::offset);
  std::vector<ByteRange> pages;
  for (const ByteRange& range : ranges) {
    if (range.length == 0) continue;
    const uint64_t begin = PageBelow(range.offset);
    const uint64_t end = PageAbove(range.offset + range.length);
    if (pages.empty() || begin > pages.back().offset + pages.back().length) {
      pages.push_back({begin, end - begin});
    } else if (end > pages.back().offset + pages.back().length) {
      pages.back().length = end - pages.back().offset;
    }
  }
  return pages;
}

uint64_t TotalOf(std::span<const ByteRange> ranges) {
  uint64_t total = 0;
  for (const ByteRange& range : ranges) total += range.length;
  return total;
}

// A mapping that is unmapped at the end of its lifetime.
class Pages {
 public:
  Pages() = default;
  explicit Pages(std::span<std::byte> bytes) : bytes_(bytes) {}
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  ~Pages() {
    if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
  }
  std::span<std::byte> bytes() const { return bytes_; }
  // For memory that was moved away; its address range may be in use again.
  void ForgetFirst(uint64_t length) { bytes_ = bytes_.subspan(length); }

 private:
  std::span<std::byte> bytes_;
};

// Maps new memory with the same offset modulo a huge page as `like`, so that
// mremap(2) moves page tables. The memory uses small pages: a process is
// blocked meanwhile, and a machine that must find huge pages first may take ten
// times as long.
std::span<std::byte> MapLike(std::span<const std::byte> like) {
  const uint64_t asked = like.size() + kHugePage;
  void* const address =
      ::mmap(nullptr, asked, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return {};
  auto* const start = static_cast<std::byte*>(address);
  const uint64_t skip = (reinterpret_cast<uintptr_t>(like.data()) -
                         reinterpret_cast<uintptr_t>(address)) %
                        kHugePage;
  if (skip > 0) ::munmap(start, skip);
  ::munmap(start + skip + like.size(), kHugePage - skip);
  return {start + skip, like.size()};
}

// Replaces the mapping with inaccessible memory.
void MakeUnusable(std::span<std::byte> mapping) {
  (void)::mmap(mapping.data(), mapping.size(), PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

// Returns the parts of the ranges that lie in `part`, relative to its start.
std::vector<ByteRange> Within(const ByteRange& part,
                              std::span<const ByteRange> ranges) {
  std::vector<ByteRange> within;
  for (const ByteRange& range : ranges) {
    const uint64_t begin = std::max(part.offset, range.offset);
    const uint64_t end =
        std::min(part.offset + part.length, range.offset + range.length);
    if (begin < end) within.push_back({begin - part.offset, end - begin});
  }
  return within;
}

// Puts `memory` in place of a mapping of the same size, step by step.
class Replacement {
 public:
  // `wanted`: whole pages, relative to the mapping. `memory` has their content
  // in the file.
  Replacement(std::span<std::byte> mapping, std::byte* memory,
              std::span<const ByteRange> wanted)
      : mapping_(mapping),
        memory_(memory),
        wanted_(wanted),
        pagemap_(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)),
        entries_(kStep / PageBytes()) {}

  // Replaces the pages from `begin` to `end`. Returns whether that was done.
  bool Run(uint64_t begin, uint64_t end) {
    for (const ByteRange& range : wanted_) {
      CopyWritten(std::max(begin, range.offset),
                  std::min(end, range.offset + range.length));
    }
    return ::mremap(memory_ + begin, end - begin, end - begin,
                    MREMAP_MAYMOVE | MREMAP_FIXED,
                    mapping_.data() + begin) != MAP_FAILED;
  }

 private:
  // Returns whether a page differs from the file, as far as can be told.
  static bool WasWritten(uint64_t entry) {
    return (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0;
  }

  void CopyWritten(uint64_t from, uint64_t to) {
    if (from >= to) return;
    const uint64_t page = PageBytes();
    const uint64_t first =
        (reinterpret_cast<uintptr_t>(mapping_.data()) + from) / page;
    const auto entries =
        std::span(entries_).first(static_cast<size_t>((to - from) / page));
    const bool is_known =
        ::lseek(pagemap_.get(), static_cast<off_t>(first * sizeof entries_[0]),
                SEEK_SET) >= 0 &&
        ::read(pagemap_.get(), entries.data(), entries.size_bytes()) ==
            static_cast<ssize_t>(entries.size_bytes());
    for (size_t i = 0; from < to; ++i, from += page) {
      if (is_known && !WasWritten(entries_[i])) continue;
      std::memcpy(memory_ + from, mapping_.data() + from, page);
    }
  }

  const std::span<std::byte> mapping_;
  std::byte* const memory_;
  const std::span<const ByteRange> wanted_;
  const UniqueFd pagemap_;
  std::vector<uint64_t> entries_;
};

class SnapshotMapping : public Leased,
                        public std::enable_shared_from_this<SnapshotMapping> {
 public:
  // `bytes` maps the file from `offset`, a multiple of a page. `ranges`: the
  // parts that may be viewed.
  SnapshotMapping(std::span<std::byte> bytes, uint64_t offset,
                  std::span<const ByteRange> ranges)
      : pages_(bytes), offset_(offset), live_(ranges.begin(), ranges.end()) {}
  ~SnapshotMapping() override { DropLease(this); }

  // Returns a view of a part of a range. Requires: before EndOfViews(). A large
  // view is kept until it is released; small views are kept until all of them
  // are released. So small views share one owner, `small`, made by
  // SmallViews().
  Buffer View(uint64_t offset, uint64_t length,
              const std::shared_ptr<const void>& small) {
    const auto bytes = pages_.bytes().subspan(offset - offset_, length);
    const std::lock_guard lock(mutex_);
    if (length < kReclaimBytes) {
      small_.push_back({offset, length});
      return Buffer(small, bytes, /*writable=*/true);
    }
    const size_t view = views_.size();
    views_.push_back({offset, length});
    const auto release = [self = shared_from_this(), view](std::byte*) {
      self->Release(view);
    };
    return Buffer(std::shared_ptr<const void>(bytes.data(), release), bytes,
                  /*writable=*/true);
  }
  // Makes the owner of all small views. Call once.
  std::shared_ptr<const void> SmallViews() {
    const auto release = [self = shared_from_this()](SnapshotMapping*) {
      const std::lock_guard lock(self->mutex_);
      self->small_.clear();
    };
    return std::shared_ptr<const void>(this, release);
  }

  // Requires: the range lies within one of the constructor's ranges.
  Status Prefetch(int fd, uint64_t offset, uint64_t length) const {
    const uint64_t begin = PageBelow(offset);
    const uint64_t end = PageAbove(offset + length);
    if (IsResident(fd, {offset, length})) return Status();
    // The advice makes the kernel read in larger requests than page faults do.
    (void)::posix_fadvise(fd, static_cast<off_t>(begin),
                          static_cast<off_t>(end - begin), POSIX_FADV_WILLNEED);
    while (::madvise(pages_.bytes().data() + (begin - offset_), end - begin,
                     MADV_POPULATE_READ) != 0) {
      if (errno == EINTR) continue;
      if (errno == EINVAL) return Status();  // Before Linux 5.14.
      return Status::FromErrno(errno == EFAULT ? EIO : errno, "cannot read it")
          .At(offset);
    }
    return Status();
  }

  // From now on only existing views are kept.
  void EndOfViews() {
    const std::lock_guard lock(mutex_);
    live_.clear();
  }

  void BecomeIndependent(int fd) override {
    const Status status = OrNoMemory([&] {
      const std::vector<ByteRange> wanted = Wanted();
      if (!wanted.empty()) {
        Replace({0, pages_.bytes().size()}, wanted, fd);
      }
      return Status();
    });
    if (!status.ok()) BecomeUnusable();
  }
  void BecomeUnusable() override { MakeUnusable(pages_.bytes()); }

 private:
  void Release(size_t view) {
    const std::lock_guard lock(mutex_);
    const ByteRange range = std::exchange(views_[view], ByteRange());
    const uint64_t begin = PageAbove(range.offset) - offset_;
    const uint64_t end = PageBelow(range.offset + range.length) - offset_;
    (void)::madvise(pages_.bytes().data() + begin, end - begin, MADV_DONTNEED);
  }

  // Returns the ranges that are, or may still be, viewed, relative to the
  // mapping.
  std::vector<ByteRange> Wanted() {
    const std::lock_guard lock(mutex_);
    std::vector<ByteRange> wanted = live_;
    wanted.insert(wanted.end(), views_.begin(), views_.end());
    wanted.insert(wanted.end(), small_.begin(), small_.end());
    wanted = WholePages(std::move(wanted));
    for (ByteRange& range : wanted) range.offset -= offset_;
    return wanted;
  }

  // Replaces a part of the mapping, in whole pages, with memory. If address
  // space or memory is too small, replaces one half after the other.
  void Replace(const ByteRange& part, std::span<const ByteRange> wanted,
               int fd) {
    if (ReplaceAtOnce(part, wanted, fd).ok()) return;
    if (part.length <= kStep) {
      // Data that cannot be kept must not be mistaken for the original.
      MakeUnusable(pages_.bytes().subspan(part.offset, part.length));
      return;
    }
    const uint64_t half = PageAbove(part.length / 2);
    Replace({part.offset, half}, wanted, fd);
    Replace({part.offset + half, part.length - half}, wanted, fd);
  }

  // Replaces a part with memory that is allocated at once. On failure some of
  // its pages may be replaced; replacing those again is harmless.
  Status ReplaceAtOnce(const ByteRange& part, std::span<const ByteRange> wanted,
                       int fd) {
    const std::span<std::byte> mapping =
        pages_.bytes().subspan(part.offset, part.length);
    const std::vector<ByteRange> pages = Within(part, wanted);
    Pages memory(MapLike(mapping));
    if (memory.bytes().empty()) return Status::FromErrno(errno, "no memory");
    HAULWAY_TRY(ReadTo(memory.bytes(), fd, part, pages));
    Replacement replacement(mapping, memory.bytes().data(), pages);
    for (uint64_t begin = 0; begin < mapping.size(); begin += kStep) {
      const uint64_t end = std::min<uint64_t>(begin + kStep, mapping.size());
      WriteHold hold(mapping.subspan(begin, end - begin));
      if (!hold.status().ok() || !replacement.Run(begin, end)) {
        hold.Release();
        return Status(Code::kLimit, "memory cannot be moved there");
      }
      memory.ForgetFirst(end - begin);
    }
    return Status();
  }

  // Reads these pages of the part from the file.
  Status ReadTo(std::span<std::byte> memory, int fd, const ByteRange& part,
                std::span<const ByteRange> pages) const {
    struct stat facts;
    if (fd < 0 || ::fstat(fd, &facts) != 0) {
      const auto mapping = pages_.bytes().subspan(part.offset, part.length);
      for (const ByteRange& range : pages) {
        std::memcpy(memory.data() + range.offset, mapping.data() + range.offset,
                    range.length);
      }
      return Status();
    }
    const uint64_t start = offset_ + part.offset;
    const auto size = static_cast<uint64_t>(facts.st_size);
    const uint64_t held = size - std::min(size, start);
    std::vector<ByteRange> reads;
    for (const ByteRange& range : pages) {
      const uint64_t end = std::min(held, range.offset + range.length);
      for (uint64_t at = range.offset; at < end; at += kReadBytes) {
        reads.push_back({at, std::min(kReadBytes, end - at)});
      }
    }
    return ParallelFor(reads.size(), UsableCpus(), [&](uint64_t i) {
      const ByteRange& read = reads[i];
      return ReadFully(fd, start + read.offset,
                       memory.subspan(read.offset, read.length));
    });
  }

  const Pages pages_;
  const uint64_t offset_;
  std::mutex mutex_;
  // Offsets in the file, as in views_ and small_.
  std::vector<ByteRange> live_;
  std::vector<ByteRange> views_;  // An entry is empty after its release.
  std::vector<ByteRange> small_;
};

class SnapshotSource : public LocalSource {
 public:
  // `mapping` is null if there are no views.
  SnapshotSource(std::shared_ptr<const LocalFile> file,
                 std::vector<ByteRange> pages,
                 std::shared_ptr<SnapshotMapping> mapping)
      : LocalSource(std::move(file), IoMode::kSnapshot),
        pages_(std::move(pages)),
        mapping_(std::move(mapping)),
        small_(mapping_ == nullptr ? nullptr : mapping_->SmallViews()) {}
  ~SnapshotSource() override {
    if (mapping_ != nullptr) mapping_->EndOfViews();
  }

  Status ReadAt(uint64_t offset, std::span<std::byte> out) const override {
    HAULWAY_TRY(CheckRange(offset, out.size()));
    return ReadFully(file().fd.get(), offset, out);
  }
  std::optional<Buffer> View(uint64_t offset, uint64_t length) const override {
    if (length == 0) return Buffer();
    if (RangeWith(offset, length) == nullptr) return std::nullopt;
    return mapping_->View(offset, length, small_);
  }
  Status Prefetch(uint64_t offset, uint64_t length) const override {
    if (length == 0 || RangeWith(offset, length) == nullptr) return Status();
    return mapping_->Prefetch(file().fd.get(), offset, length);
  }

 private:
  // Returns the range in pages_ that contains this range, or null.
  const ByteRange* RangeWith(uint64_t offset, uint64_t length) const {
    const auto after =
        std::ranges::upper_bound(pages_, offset, {}, &ByteRange::offset);
    if (after == pages_.begin()) return nullptr;
    const ByteRange& range = *std::prev(after);
    const bool fits = RangeFits(offset - range.offset, length, range.length);
    return fits ? &range : nullptr;
  }

  const std::vector<ByteRange> pages_;  // Ranges that can be viewed.
  const std::shared_ptr<SnapshotMapping> mapping_;
  const std::shared_ptr<const void> small_;
};

// Returns whether at least half of the descriptors that this process may have
// are in use, given the one that it got last, the lowest that was free.
bool AreFewLeft(int last) {
  struct rlimit limit;
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 &&
         static_cast<rlim_t>(last) >= limit.rlim_cur / 2;
}

// Requires: `pages` is not empty.
Result<std::shared_ptr<SnapshotMapping>> MapUnderLease(
    const LocalFile& file, std::span<const ByteRange> pages) {
  const FileSystem system = FileSystemOf(file.fd.get());
  if (!system.leases) {
    return Status(
        Code::kUnsupported,
        fmt::format("{} has no leases",
                    system.name.empty() ? "the file system" : system.name));
  }
  const uint64_t begin = pages.front().offset;
  const uint64_t length = pages.back().offset + pages.back().length - begin;
  HAULWAY_ASSIGN(UniqueFd fd,
                 OpenAgain(file.fd.get(), O_RDONLY | O_CLOEXEC, file.path));
  // A lease keeps its descriptor as long as there are views.
  if (AreFewLeft(fd.get())) {
    return Status(Code::kUnsupported,
                  "half of the descriptors of this process are in use");
  }
  void* const address =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_NORESERVE, fd.get(), static_cast<off_t>(begin));
  if (address == MAP_FAILED) return Status::FromErrno(errno, "cannot map it");
  // A fork that bypasses the keeper gets no copy of this mapping.
  (void)::madvise(address, length, MADV_DONTFORK);
  auto mapping = std::make_shared<SnapshotMapping>(
      std::span(static_cast<std::byte*>(address), length), begin, pages);
  HAULWAY_TRY(KeepLease(std::move(fd), TotalOf(pages), mapping.get()));
  // From here on the file does not change. It may have changed before.
  struct stat facts;
  if (::fstat(file.fd.get(), &facts) != 0 ||
      static_cast<uint64_t>(facts.st_size) < file.size) {
    return Status(Code::kUnsupported, "the file was cut");
  }
  return mapping;
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> MakeSnapshotSource(
    std::shared_ptr<const LocalFile> file, std::span<const ByteRange> ranges) {
  for (const ByteRange& range : ranges) {
    if (!RangeFits(range.offset, range.length, file->size)) {
      return Status(Code::kTruncated, "a snapshot ends past the source")
          .At(range.offset);
    }
  }
  std::vector<ByteRange> pages = WholePages({ranges.begin(), ranges.end()});
  std::shared_ptr<SnapshotMapping> mapping;
  if (!pages.empty()) {
    auto mapped = MapUnderLease(*file, pages);
    if (!mapped.ok()) return std::move(mapped).status().Of(file->path);
    mapping = *std::move(mapped);
  }
  return std::shared_ptr<const ByteSource>(
      std::make_shared<const SnapshotSource>(std::move(file), std::move(pages),
                                             std::move(mapping)));
}

}  // namespace haulway
