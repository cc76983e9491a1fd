// A snapshot is a private mapping of a file under a read lease
// (lease_keeper.h). When somebody is about to change the file, the kernel holds
// them while what is mapped is brought into memory of the process, at the same
// addresses:
//
//   1. The file's bytes are read to fresh memory elsewhere, by several threads.
//   2. All other threads are stopped (thread_stop.h). Pages that were written
//      to since the load, which /proc/self/pagemap tells apart from those of
//      the file, are copied over what was read.
//   3. One mremap(2) puts the memory in the mapping's place; threads go on.
//
// A write is thus either in its page before that is copied, or goes to the new
// page. Threads cannot always be stopped: the process may have given up the
// rights since the load, or a thread waits in the kernel. Then 2 and 3 are done
// a few pages at a time, and whoever writes to those waits (write_hold.h). This
// is not the first choice because a system call that writes there fails.
//
// Tried instead: breaking copy-on-write in place (MADV_POPULATE_WRITE), but
// truncating a file takes private copies of its pages away, too, and only a
// mapping of something else is safe from that; moving pages (UFFDIO_MOVE) and
// protecting them (UFFDIO_WRITEPROTECT), which are not for private mappings of
// files.

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/no_memory.h"
#include "base/posix.h"
#include "base/thread_pool.h"
#include "base/thread_stop.h"
#include "base/write_hold.h"
#include "haulway/options.h"
#include "io/file_system.h"
#include "io/lease_keeper.h"
#include "io/local_source.h"
#include "io/page_cache.h"

namespace haulway {

namespace {

constexpr uint64_t kPage = 4 * kKiB;
constexpr uint64_t kHugePage = 2 * kMiB;
constexpr uint64_t kReadBytes = 4 * kMiB;  // Read by one thread at once.
// Where threads cannot be stopped, what is replaced at once; and the smallest
// piece for which memory is looked for.
constexpr uint64_t kStep = 256 * kKiB;
// Below this, giving pages back early is not worth a system call.
constexpr uint64_t kReclaimBytes = 1 * kMiB;
// Entries of /proc/PID/pagemap (Documentation/admin-guide/mm/pagemap.rst).
constexpr uint64_t kPresent = uint64_t{1} << 63;
constexpr uint64_t kSwapped = uint64_t{1} << 62;
constexpr uint64_t kOfFile = uint64_t{1} << 61;

uint64_t PageBelow(uint64_t offset) { return offset / kPage * kPage; }
uint64_t PageAbove(uint64_t offset) { return PageBelow(offset + kPage - 1); }

// In whole pages, sorted, without what overlaps.
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

// Mapped memory that goes with it.
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
  // For memory that was moved away; others may have mapped something there.
  void Forget() { bytes_ = {}; }
  void ForgetFirst(uint64_t length) { bytes_ = bytes_.subspan(length); }

 private:
  std::span<std::byte> bytes_;
};

// Fresh memory that lies as `like` does modulo a huge page, so that moving it
// moves tables of pages. Its own are small: somebody waits for them, and a
// machine that has to find huge ones may take ten times as long.
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

// Puts in the mapping's place what nobody may touch.
void MakeUnusable(std::span<std::byte> mapping) {
  (void)::mmap(mapping.data(), mapping.size(), PROT_NONE,
               MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
}

// Returns the parts of the ranges that lie in `part`, counted from its start.
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

// Replacing `length` bytes of a mapping, as a helper of thread_stop.h may.
struct Replacement {
  std::byte* mapping;
  std::byte* memory;
  uint64_t length;
  std::span<const ByteRange> wanted;  // Whole pages, from the mapping's start.
  uint64_t begin;                     // Where the part begins, from the same.
  int pagemap;
  bool begun;
  bool done;
  std::array<uint64_t, 4096> entries;

  // Whether a page differs from the file's, as far as can be seen.
  static bool WasWritten(uint64_t entry) {
    return (entry & (kPresent | kSwapped)) != 0 && (entry & kOfFile) == 0;
  }

  void CopyWritten(uint64_t from, uint64_t to) {
    while (from < to) {
      const uint64_t first =
          (reinterpret_cast<uintptr_t>(mapping) + from) / kPage;
      const uint64_t count =
          std::min<uint64_t>((to - from) / kPage, entries.size());
      // Calls that never allocate, whatever they meet.
      const bool found =
          ::lseek(pagemap, static_cast<off_t>(first * sizeof entries[0]),
                  SEEK_SET) >= 0;
      const ssize_t got =
          found ? ::read(pagemap, entries.data(), count * sizeof entries[0])
                : -1;
      const bool is_known =
          got == static_cast<ssize_t>(count * sizeof entries[0]);
      for (uint64_t i = 0; i < count; ++i, from += kPage) {
        if (is_known && !WasWritten(entries[i])) continue;
        std::memcpy(memory + from, mapping + from, kPage);
      }
    }
  }

  void Run() {
    const uint64_t end = begin + length;
    for (const ByteRange& range : wanted) {
      CopyWritten(std::max(begin, range.offset),
                  std::min(end, range.offset + range.length));
    }
    begun = true;
    done =
        ::mremap(memory + begin, length, length, MREMAP_MAYMOVE | MREMAP_FIXED,
                 mapping + begin) != MAP_FAILED;
  }
  static void Run(void* replacement) {
    static_cast<Replacement*>(replacement)->Run();
  }
};

class SnapshotMapping : public Leased,
                        public std::enable_shared_from_this<SnapshotMapping> {
 public:
  // `bytes` maps the file from `offset`, a multiple of a page; `ranges` of it
  // count.
  SnapshotMapping(std::span<std::byte> bytes, uint64_t offset,
                  std::span<const ByteRange> ranges)
      : pages_(bytes), offset_(offset), live_(ranges.begin(), ranges.end()) {}
  ~SnapshotMapping() override { DropLease(this); }

  // A part of a range, to be had until EndOfViews(). Large ones count until
  // they are released, small ones until all of them are: who has many of them
  // shares `small`, which is of SmallViews().
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
  // Asked for once.
  std::shared_ptr<const void> SmallViews() {
    const auto release = [self = shared_from_this()](SnapshotMapping*) {
      const std::lock_guard lock(self->mutex_);
      self->small_.clear();
    };
    return std::shared_ptr<const void>(this, release);
  }

  // Requires: the range is of one of the constructor's.
  Status Prefetch(int fd, uint64_t offset, uint64_t length) const {
    const uint64_t begin = PageBelow(offset);
    const uint64_t end = PageAbove(offset + length);
    if (IsResident(fd, {offset, length})) return Status();
    // The advice reads larger requests than touching does.
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

  // From now on only what is viewed counts.
  void EndOfViews() {
    const std::lock_guard lock(mutex_);
    live_.clear();
  }

  void BecomeIndependent(int fd, std::chrono::milliseconds* patience) override {
    const Status status = OrNoMemory([&] {
      const std::vector<ByteRange> wanted = Wanted();
      if (!wanted.empty()) {
        Replace({0, pages_.bytes().size()}, wanted, fd, patience);
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

  // What is or may come to be viewed, from the mapping's start.
  std::vector<ByteRange> Wanted() {
    const std::lock_guard lock(mutex_);
    std::vector<ByteRange> wanted = live_;
    wanted.insert(wanted.end(), views_.begin(), views_.end());
    wanted.insert(wanted.end(), small_.begin(), small_.end());
    wanted = WholePages(std::move(wanted));
    for (ByteRange& range : wanted) range.offset -= offset_;
    return wanted;
  }

  // Puts memory in the place of a part of the mapping, of whole pages; half
  // of it at a time if there is not enough address space or memory for all.
  void Replace(const ByteRange& part, std::span<const ByteRange> wanted, int fd,
               std::chrono::milliseconds* patience) {
    if (ReplaceAtOnce(part, wanted, fd, patience).ok()) return;
    if (part.length <= kStep) {
      // What cannot be kept is not to be taken for what it was.
      MakeUnusable(pages_.bytes().subspan(part.offset, part.length));
      return;
    }
    const uint64_t half = PageAbove(part.length / 2);
    Replace({part.offset, half}, wanted, fd, patience);
    Replace({part.offset + half, part.length - half}, wanted, fd, patience);
  }

  // If this fails, the part is as it was.
  Status ReplaceAtOnce(const ByteRange& part, std::span<const ByteRange> wanted,
                       int fd, std::chrono::milliseconds* patience) {
    const std::span<std::byte> mapping =
        pages_.bytes().subspan(part.offset, part.length);
    std::vector<ByteRange> pages = Within(part, wanted);
    Pages memory(MapLike(mapping));
    if (memory.bytes().empty()) return Status::FromErrno(errno, "no memory");
    HAULWAY_TRY(ReadTo(memory.bytes(), fd, part, pages));
    const UniqueFd pagemap(::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC));
    const auto replacement = std::make_unique<Replacement>();
    replacement->mapping = mapping.data();
    replacement->memory = memory.bytes().data();
    replacement->length = mapping.size();
    replacement->wanted = pages;
    replacement->pagemap = pagemap.get();
    if (patience->count() > 0) {
      (void)WhileOthersStopped(Replacement::Run, replacement.get(), *patience);
    }
    if (!replacement->begun) {
      *patience = {};
      return ReplaceInSteps(replacement.get(), &memory);
    }
    // A part of it may have been moved.
    memory.Forget();
    if (!replacement->done) return NotReplaced();
    return Status();
  }

  static Status NotReplaced() {
    return Status(Code::kLimit, "memory cannot be moved there");
  }

  // If this fails, a part may have been replaced; replacing that again does no
  // harm.
  static Status ReplaceInSteps(Replacement* replacement, Pages* memory) {
    const uint64_t all = replacement->length;
    for (uint64_t begin = 0; begin < all; begin += kStep) {
      replacement->begin = begin;
      replacement->length = std::min(kStep, all - begin);
      replacement->done = false;
      WriteHold hold({replacement->mapping + begin, replacement->length});
      if (hold.status().ok()) replacement->Run();
      if (!replacement->done) {
        hold.Release();
        return NotReplaced();
      }
      memory->ForgetFirst(replacement->length);
    }
    return Status();
  }
  // Reads what the file has of these pages of the part.
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
  std::vector<ByteRange> live_;   // In the file, as the next.
  std::vector<ByteRange> views_;  // Empty once they are released.
  std::vector<ByteRange> small_;
};

class SnapshotSource : public LocalSource {
 public:
  // `mapping` is null where there is nothing to view.
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
  // The one of pages_ that this range is part of; null if there is none.
  const ByteRange* RangeWith(uint64_t offset, uint64_t length) const {
    const auto after =
        std::ranges::upper_bound(pages_, offset, {}, &ByteRange::offset);
    if (after == pages_.begin()) return nullptr;
    const ByteRange& range = *std::prev(after);
    const bool fits = RangeFits(offset - range.offset, length, range.length);
    return fits ? &range : nullptr;
  }

  const std::vector<ByteRange> pages_;  // That have views.
  const std::shared_ptr<SnapshotMapping> mapping_;
  const std::shared_ptr<const void> small_;
};

// Requires: pages.
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
  void* const address =
      ::mmap(nullptr, length, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_NORESERVE, fd.get(), static_cast<off_t>(begin));
  if (address == MAP_FAILED) return Status::FromErrno(errno, "cannot map it");
  // A fork that the keeper is not told of has no such mapping.
  (void)::madvise(address, length, MADV_DONTFORK);
  auto mapping = std::make_shared<SnapshotMapping>(
      std::span(static_cast<std::byte*>(address), length), begin, pages);
  HAULWAY_TRY(KeepLease(std::move(fd), TotalOf(pages), mapping.get()));
  // From here on it does not change; it may have until now.
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
