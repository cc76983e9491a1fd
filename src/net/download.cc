#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <functional>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/posix.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "haulway/machine.h"
#include "haulway/open.h"
#include "haulway/options.h"
#include "io/file_system.h"
#include "io/web_page.h"
#include "net/arrivals.h"

// Design: the file is divided into grains. Threads read blocks of many grains,
// in any order, and write each grain to the file as soon as it has arrived, so
// that a killed run loses at most a grain per connection. The state file holds
// a head, which identifies the object and the machine's boot, and then one byte
// per grain: missing, written, or on disk. Written grains survive the process
// but not the machine: after a reboot, only grains marked as on disk count. A
// mark is written after the fact, so the state is true however the run ends.
// The state file is locked while a process works on it.
//
// Tried instead: a single stream with its length as the state, like curl -C,
// which uses one connection and cannot tell whether the object is the same;
// marks only for blocks on disk, which loses up to 64 MiB of a killed run or
// waits for the disk after every block.

namespace haulway {

namespace {

// Size of one request.
constexpr uint64_t kBlockBytes = 4 * kMiB;
// The unit that is kept of an incomplete block.
constexpr uint64_t kGrainBytes = 128 * kKiB;
// With more grains than this, grains become larger: the state has a byte for
// each.
constexpr uint64_t kMostGrains = uint64_t{1} << 24;
// Bytes to write before waiting for the disk.
constexpr uint64_t kSyncedTogether = 64 * kMiB;
constexpr std::string_view kMagic = "haulway-part 3";
constexpr uint64_t kMostHeadBytes = 1 * kMiB;

// A grain's mark in the state.
constexpr char kMissing = '.';
constexpr char kWritten = 'w';
constexpr char kOnDisk = 'd';

struct Names {
  std::string target;
  std::string folder;
  std::string part;
  std::string state;
};

Names NamesOf(std::string_view path) {
  const size_t slash = path.rfind('/');
  const std::string folder(slash == path.npos ? "" : path.substr(0, slash + 1));
  const std::string_view name =
      slash == path.npos ? path : path.substr(slash + 1);
  Names names;
  names.target = path;
  names.folder = folder.empty() ? "." : folder;
  names.part = fmt::format("{}.{}.haulway-part", folder, name);
  names.state = names.part + ".state";
  return names;
}

// Opens a file in `folder`. Fails for a file that another user put there: its
// bytes would be taken for bytes that were downloaded.
Result<UniqueFd> OpenForWriting(const std::string& path,
                                const std::string& folder) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW;
  UniqueFd fd(::open(path.c_str(), kFlags | O_EXCL, 0666));
  if (fd.get() >= 0) return fd;
  if (errno == EEXIST) fd = UniqueFd(::open(path.c_str(), kFlags, 0666));
  struct stat facts;
  struct stat around;
  if (fd.get() < 0 || ::fstat(fd.get(), &facts) != 0 ||
      ::stat(folder.c_str(), &around) != 0) {
    return Status::FromErrno(errno,
                             fmt::format("cannot write {}", QuotePath(path)));
  }
  // Root and the owner of the folder can change its files anyway.
  const bool is_trusted = facts.st_uid == ::geteuid() || facts.st_uid == 0 ||
                          facts.st_uid == around.st_uid;
  if (is_trusted) return fd;
  return Status(Code::kPermissionDenied,
                fmt::format("{} belongs to user {}: expected a file of user "
                            "{}, or none",
                            QuotePath(path), facts.st_uid, ::geteuid()));
}

Status WriteAll(int fd, uint64_t offset, std::string_view text) {
  const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
  return WriteFully(fd, offset, {&bytes, 1});
}

uint64_t GrainBytesOf(uint64_t size) {
  uint64_t grain = kGrainBytes;
  while (grain < kBlockBytes && size / grain >= kMostGrains) grain *= 2;
  return grain;
}

// Identifies the object. A version alone does not: servers make ETags of a time
// and a size, which other objects may have too.
std::string HeadOf(const ByteSource& source, std::string_view version,
                   uint64_t grain_bytes) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n", kMagic, Escape(source.name()),
                     source.size(), grain_bytes, Escape(version));
}

// Returns a line that differs after every boot; empty if the system does not
// tell.
std::string BootLine() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string line;
  std::getline(file, line);
  return line + "\n";
}

class Downloading {
 public:
  Downloading(const ByteSource& source, std::string_view path,
              const DownloadOptions& options)
      : source_(source),
        names_(NamesOf(path)),
        options_(options),
        traits_(source.Look({})),
        grain_bytes_(GrainBytesOf(source.size())) {
    const auto remote = source.remote_stats();
    if (remote.has_value()) version_ = remote->version;
  }

  Result<DownloadStats> Run() {
    const auto start = std::chrono::steady_clock::now();
    struct stat facts;
    if (::stat(names_.target.c_str(), &facts) == 0 && S_ISDIR(facts.st_mode)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("{} is a folder: expected the name of a file",
                                Quote(names_.target)));
    }
    HAULWAY_TRY(RefuseWebPage(source_, names_.target));
    HAULWAY_ASSIGN(state_, OpenForWriting(names_.state, names_.folder));
    // A process that finished between open() and flock() has removed the file
    // that is locked here.
    struct stat named;
    const bool is_locked = ::flock(state_.get(), LOCK_EX | LOCK_NB) == 0;
    if ((!is_locked && !HasNoLocks(errno)) ||
        ::fstat(state_.get(), &facts) != 0 ||
        ::stat(names_.state.c_str(), &named) != 0 ||
        facts.st_dev != named.st_dev || facts.st_ino != named.st_ino) {
      return Status(
          Code::kUnavailable,
          fmt::format("another process downloads {}", Quote(names_.target)));
    }
    HAULWAY_ASSIGN(part_, OpenForWriting(names_.part, names_.folder));
    HAULWAY_TRY(ReadState());
    HAULWAY_TRY(Bring());
    HAULWAY_TRY(Finish());
    stats_.bytes = source_.size();
    if (const auto remote = source_.remote_stats()) {
      stats_.requests = remote->requests;
      stats_.retries = remote->retries;
    }
    stats_.seconds =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
            .count();
    return stats_;
  }

 private:
  uint64_t EndOf(uint64_t grain) const {
    return std::min((grain + 1) * grain_bytes_, source_.size());
  }

  // Takes over the state of an earlier run, if it belongs to this object.
  Status ReadState() {
    marks_.assign((source_.size() + grain_bytes_ - 1) / grain_bytes_, kMissing);
    const std::string head = HeadOf(source_, version_, grain_bytes_);
    const std::string boot = BootLine();
    const off_t size = ::lseek(state_.get(), 0, SEEK_END);
    const off_t part = ::lseek(part_.get(), 0, SEEK_END);
    std::string text;
    if (size > 0 &&
        static_cast<uint64_t>(size) <= kMostHeadBytes + marks_.size()) {
      text.resize(static_cast<size_t>(size));
      HAULWAY_TRY(
          ReadFully(state_.get(), 0, std::as_writable_bytes(std::span(text))));
    }
    const size_t end_of_boot = text.find('\n', head.size());
    const bool same = !version_.empty() && text.starts_with(head) &&
                      end_of_boot != text.npos &&
                      part == static_cast<off_t>(source_.size());
    if (same) {
      const std::string_view theirs =
          std::string_view(text).substr(0, end_of_boot + 1).substr(head.size());
      TakeMarks(std::string_view(text).substr(end_of_boot + 1),
                theirs == boot && boot.size() > 1);
    } else if (::ftruncate(state_.get(), 0) != 0 ||
               ::ftruncate(part_.get(), 0) != 0 ||
               ::ftruncate(part_.get(), static_cast<off_t>(source_.size())) !=
                   0) {
      return Status::FromErrno(
          errno, fmt::format("cannot write {}", Quote(names_.part)));
    }
    head_bytes_ = head.size() + boot.size();
    return WriteAll(state_.get(), 0, head + boot + marks_).Of(names_.target);
  }

  void TakeMarks(std::string_view marks, bool same_boot) {
    for (uint64_t grain = 0; grain < std::min(marks.size(), marks_.size());
         ++grain) {
      const char mark = marks[grain];
      const bool counts = mark == kOnDisk || (mark == kWritten && same_boot);
      if (!counts) continue;
      marks_[grain] = mark;
      stats_.resumed_bytes += EndOf(grain) - grain * grain_bytes_;
    }
  }

  // Returns the ranges of missing grains, none longer than a block.
  std::vector<ByteRange> Missing() const {
    std::vector<ByteRange> missing;
    for (uint64_t grain = 0; grain < marks_.size(); ++grain) {
      if (marks_[grain] != kMissing) continue;
      const uint64_t begin = grain * grain_bytes_;
      const uint64_t length = EndOf(grain) - begin;
      if (!missing.empty()) {
        ByteRange& last = missing.back();
        if (last.offset + last.length == begin &&
            last.length + length <= kBlockBytes) {
          last.length += length;
          continue;
        }
      }
      missing.push_back({begin, length});
    }
    return missing;
  }

  Status Bring() {
    const std::vector<ByteRange> missing = Missing();
    done_ = stats_.resumed_bytes;
    int threads = options_.threads;
    if (threads == 0) threads = traits_.parallel;
    if (threads == 0) threads = UsableCpus();
    const CancelScope scope(options_.cancel);
    return ParallelFor(missing.size(), threads,
                       [&](uint64_t i) { return BringBlock(missing[i]); });
  }

  Status BringBlock(const ByteRange& range) {
    if (CancelScope::IsCancelled()) {
      return Status(Code::kCancelled, "downloading was cancelled");
    }
    HAULWAY_ASSIGN(const Buffer bytes, AllocateBuffer(range.length));
    Block block(*this, range.offset, bytes.bytes());
    {
      const net::ArrivalScope scope(
          [&](std::span<const std::byte> piece) { block.Arrived(piece); });
      HAULWAY_TRY(source_.ReadAt(range.offset, bytes.mutable_bytes()));
    }
    return block.KeepAll();
  }

  // The state of one block: which bytes have arrived and which are written.
  class Block {
   public:
    Block(Downloading& download, uint64_t offset,
          std::span<const std::byte> bytes)
        : download_(download), offset_(offset), bytes_(bytes) {}

    // Writes the complete grains that have arrived so far without a gap.
    void Arrived(std::span<const std::byte> piece) {
      const std::less<const std::byte*> before;
      if (before(piece.data(), bytes_.data()) ||
          before(bytes_.data() + bytes_.size(), piece.data() + piece.size())) {
        return;
      }
      const auto at = static_cast<uint64_t>(piece.data() - bytes_.data());
      const uint64_t grain = download_.grain_bytes_;
      // Bytes before this piece were available already; KeepAll() writes them.
      if (end_ == 0) {
        begin_ = std::min(bytes_.size(), (at + grain - 1) / grain * grain);
        kept_ = begin_;
      } else if (at != end_) {
        return;
      }
      end_ = at + piece.size();
      const uint64_t whole = end_ / grain * grain;
      if (whole <= kept_ || !status_.ok()) return;
      status_ = Keep(kept_, whole);
      kept_ = whole;
    }

    // Writes the remaining bytes.
    Status KeepAll() {
      HAULWAY_TRY(status_);
      if (end_ == 0) return Keep(0, bytes_.size());
      HAULWAY_TRY(Keep(0, begin_));
      return Keep(kept_, bytes_.size());
    }

   private:
    Status Keep(uint64_t begin, uint64_t end) {
      if (begin >= end) return Status();
      return download_.Keep(offset_ + begin,
                            bytes_.subspan(begin, end - begin));
    }

    Downloading& download_;
    const uint64_t offset_;
    const std::span<const std::byte> bytes_;
    uint64_t begin_ = 0;  // Where the bytes of the server begin.
    uint64_t end_ = 0;    // Where they end so far; 0 before the first.
    uint64_t kept_ = 0;
    Status status_;
  };

  // Writes whole grains and marks them.
  Status Keep(uint64_t offset, std::span<const std::byte> bytes) {
    HAULWAY_TRY(WriteFully(part_.get(), offset, {&bytes, 1}).Of(names_.target));
    const ByteRange range{offset, bytes.size()};
    std::unique_lock lock(mutex_);
    HAULWAY_TRY(Mark(range, kWritten));
    done_ += bytes.size();
    if (options_.progress) options_.progress(done_, source_.size());
    written_.push_back(range);
    written_bytes_ += bytes.size();
    if (written_bytes_ < kSyncedTogether) return Status();
    const std::vector<ByteRange> ranges = std::exchange(written_, {});
    written_bytes_ = 0;
    lock.unlock();  // Other threads continue meanwhile.
    if (::fdatasync(part_.get()) != 0) return NotSynced();
    lock.lock();
    for (const ByteRange& one : ranges) HAULWAY_TRY(Mark(one, kOnDisk));
    return Status();
  }

  // Requires the mutex.
  Status Mark(const ByteRange& range, char mark) {
    const uint64_t first = range.offset / grain_bytes_;
    const uint64_t count = (range.length + grain_bytes_ - 1) / grain_bytes_;
    std::fill_n(marks_.begin() + static_cast<ptrdiff_t>(first), count, mark);
    return WriteAll(state_.get(), head_bytes_ + first,
                    std::string_view(marks_).substr(first, count))
        .Of(names_.target);
  }

  // Fails, and keeps nothing: bytes that are marked as written may be lost, and
  // the next sync would not tell.
  Status NotSynced() {
    Status status = Status::FromErrno(
        errno, fmt::format("cannot write {}", Quote(names_.part)));
    Discard();
    return status;
  }

  void Discard() {
    ::unlink(names_.part.c_str());
    ::unlink(names_.state.c_str());
  }

  Status Finish() {
    if (options_.check) {
      Status status = options_.check(names_.part);
      if (!status.ok()) {
        Discard();
        return status;
      }
    }
    if (::fsync(part_.get()) != 0) return NotSynced();
    if (::rename(names_.part.c_str(), names_.target.c_str()) != 0) {
      return Status::FromErrno(
          errno, fmt::format("cannot write {}", Quote(names_.target)));
    }
    ::unlink(names_.state.c_str());
    (void)SyncFolder(names_.folder, part_.get());
    return Status();
  }

  const ByteSource& source_;
  const Names names_;
  const DownloadOptions& options_;
  const SourceTraits traits_;
  std::string version_;
  DownloadStats stats_;
  UniqueFd state_;
  UniqueFd part_;
  const uint64_t grain_bytes_;
  uint64_t head_bytes_ = 0;
  std::mutex mutex_;
  std::string marks_ HAULWAY_GUARDED_BY(mutex_);  // One per grain.
  // Written but not synced.
  std::vector<ByteRange> written_ HAULWAY_GUARDED_BY(mutex_);
  uint64_t written_bytes_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t done_ = 0;
};

}  // namespace

Result<DownloadStats> Download(const ByteSource& source, std::string_view path,
                               const DownloadOptions& options) {
  auto result = OrNoMemory([&]() -> Result<DownloadStats> {
    return Downloading(source, path, options).Run();
  });
  return result;
}

}  // namespace haulway
