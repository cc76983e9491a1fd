// Design: an unnamed file (O_TMPFILE) takes the target's name in one step, by a
// link under a hidden name and a rename. If the file system has no unnamed
// files, the file has a hidden name from the start; if its process dies, the
// next run of the same user removes it. Space is allocated in advance:
// otherwise ext4 reserves it block by block (219 ms per GiB instead of 140).
// Durable files are written with direct I/O if possible; other files, if the
// page cache turns out to be slower (WriteRoute).
//
// Writing to the target itself may leave a mixture after a crash, and changes
// existing mappings of the file. It is done only if no file can be created
// beside the target, or take its name: then the new content is written to a
// file without a name elsewhere, and exchanged with the old one when it is
// complete (exchange.h). Direct I/O is used from 32 MiB on, where it becomes
// faster.

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <poll.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <utility>

#include "base/page_chooser.h"
#include "base/posix.h"
#include "base/text.h"
#include "haulway/options.h"
#include "haulway/sink.h"
#include "io/access_list.h"
#include "io/direct_writer.h"
#include "io/exchange.h"
#include "io/file_of_set.h"
#include "io/file_system.h"
#include "io/own_mappings.h"
#include "io/temporary_file.h"
#include "io/write_route.h"

namespace haulway {

namespace {

// From this size on, direct I/O is faster.
constexpr uint64_t kDirectBytes = 32 * kMiB;
// Size of a page cache write when large blocks are faster, and smallest write
// that is timed to find out.
constexpr uint64_t kLargePageCacheWrite = kMiB;
constexpr uint64_t kSmallestTimed = 512 * kKiB;

std::string PathOfFd(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

Status AlreadyThere(std::string_view path) {
  return Status(
      Code::kInvalidArgument,
      fmt::format("{} is there already: expected a new name", QuotePath(path)));
}

class FileSink : public FileOfSet {
 public:
  FileSink(std::string name, FinalName target, const FileSinkOptions& options,
           bool is_of_set)
      : name_(std::move(name)),
        target_(std::move(target)),
        options_(options),
        is_of_set_(is_of_set) {}
  ~FileSink() override {
    // The temporary of a process that forked is not the child's.
    if (owner_ == ::getpid()) RemoveTemporary();
  }

  std::string_view name() const override { return name_; }
  const std::string& path() const override { return target_.path; }

  const std::string& temporary() const override { return temporary_; }
  bool HasName() const override { return LeadsTo(path(), fd_.get()); }

  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    HAULWAY_TRY(OpenFile());
    if (size.has_value()) HAULWAY_TRY(Allocate(*size));
    const bool is_large = size >= kDirectBytes && !in_place_;
    const bool direct =
        !in_place_ && options_.direct.value_or(durable() && is_large);
    if (direct || (is_large && options_.direct.value_or(true))) OpenDirect();
    has_choice_ = !direct;
    if (!has_choice_ && direct_.has_value()) {
      return SinkTraits{.request_bytes = DirectWriter::kRequestBytes};
    }
    // Linux locks a file while it copies to its page cache.
    return SinkTraits{.in_turn = true};
  }

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts) override {
    return WriteParts(offset, parts).Of(name_);
  }

  Status CopyAt(uint64_t offset, const FileBytes& from,
                uint64_t length) override {
    if (direct_.has_value() && !has_choice_) {
      return Status(Code::kUnsupported, "the source is in the page cache");
    }
    return CopyFully(fd_.get(), offset, from.fd, from.offset, length).Of(name_);
  }

  uint64_t direct_bytes() const override {
    return direct_.has_value() ? direct_->direct_bytes() : 0;
  }

  Status Prepare(uint64_t size) override {
    if (direct_.has_value()) HAULWAY_TRY(direct_->Finish());
    if (RetryInterrupted([&] {
          return ::ftruncate(fd_.get(), static_cast<off_t>(size));
        }) != 0) {
      return Failed("cannot set the size of");
    }
    if (in_place_) {
      is_prepared_ = true;
      return Status();
    }
    KeepMode();
    if (durable() &&
        RetryInterrupted([&] { return ::fsync(fd_.get()); }) != 0) {
      // Do not retry: dirty pages may count as clean now, so success would
      // prove nothing.
      return Failed("cannot sync");
    }
    if (!durable() && !WriteBack(fd_.get())) return Failed("cannot write");
    HAULWAY_TRY(TakeTemporaryName());
    is_prepared_ = true;
    return Status();
  }

  Status Commit(uint64_t size) override {
    if (!is_prepared_) HAULWAY_TRY(Prepare(size));
    return in_place_ ? Overwrite(size) : TakeName(size);
  }

 private:
  bool durable() const { return options_.durability == Durability::kFull; }

  // Closes a duplicate: network file systems write back when a file is closed,
  // and report a full disk only then. Returns false with errno.
  static bool WriteBack(int fd) {
    const int again = ::fcntl(fd, F_DUPFD_CLOEXEC, 0);
    return again < 0 || ::close(again) == 0 || errno == EINTR;
  }

  Status Failed(std::string_view what) const {
    const int error = errno;
    const std::string where =
        in_place_ ? fmt::format(" through a file in {}", TemporaryFolder())
                  : "";
    return Status::FromErrno(
        error, fmt::format("{} {}{}", what, Quote(path()), where));
  }

  Status OpenFile() {
    if (target_.has_name && !is_of_set_) SweepTemporaries(path());
    int fd = -1;
    errno = target_.has_name ? EOPNOTSUPP : EACCES;
    if (options_.temporary == nullptr && target_.has_name) {
      fd = RetryInterrupted([&] {
        return ::open(FolderOfPath(path()).c_str(),
                      O_TMPFILE | O_RDWR | O_CLOEXEC,
                      options_.is_private ? S_IRUSR | S_IWUSR : 0666);
      });
    }
    if (fd >= 0 && ::access(PathOfFd(fd).c_str(), F_OK) != 0) {
      ::close(fd);  // Without /proc, the file could not be given a name.
      fd = -1;
      errno = EOPNOTSUPP;
    }
    if (fd >= 0) ::flock(fd, LOCK_EX | LOCK_NB);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
      fd = CreateTemporary();
    }
    const bool refused = errno == EACCES || errno == EPERM || errno == EROFS;
    if (fd < 0 && refused && options_.temporary == nullptr) {
      if (options_.is_read || is_of_set_) {
        return Failed("cannot make a new file beside");
      }
      const int old_error = errno;
      if (CanOverwrite()) return OpenInPlace();
      errno = old_error;
    }
    if (fd < 0) return Failed("cannot create");
    fd_ = UniqueFd(fd);
    if (options_.temporary != nullptr) *options_.temporary = temporary_;
    return Status();
  }

  UniqueFd OpenTarget() const {
    return UniqueFd(RetryInterrupted(
        [&] { return ::open(path().c_str(), O_RDWR | O_CLOEXEC); }));
  }
  bool CanOverwrite() const { return OpenTarget().get() >= 0; }

  Status OpenInPlace() {
    in_place_ = true;
    HAULWAY_ASSIGN(fd_, OpenNameless(TemporaryFolder()));
    return Status();
  }

  // Creates the temporary and locks it. It has at most the target's
  // permissions, because the data may be secret.
  int CreateTemporary() {
    struct stat old;
    const bool exists = ::stat(path().c_str(), &old) == 0;
    const mode_t mode =
        exists || options_.is_private ? S_IRUSR | S_IWUSR : 0666;
    for (int number = 0;; ++number) {
      temporary_ = TemporaryName(path(), number);
      const int fd = RetryInterrupted([&] {
        return ::open(temporary_.c_str(),
                      O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, mode);
      });
      if (fd >= 0 && LockTemporary(fd)) return fd;
      if (fd >= 0) {
        ::close(fd);
      } else if (errno != EEXIST) {
        temporary_.clear();
        return fd;
      }
    }
  }

  // Allocates the space, to detect a full disk at once and to avoid allocation
  // block by block, which on ext4 is a third of the time of a page cache write.
  // File systems without fallocate() are left alone. On tmpfs only the free
  // space is compared, since allocation would clear all the memory first.
  Status Allocate(uint64_t size) {
    struct statfs facts;
    // One write allocates its space at once anyway.
    if (size <= kPageCacheWrite) return Status();
    if (::fstatfs(fd_.get(), &facts) == 0 && facts.f_type == TMPFS_MAGIC) {
      const bool is_limited = facts.f_blocks != 0;
      if (!is_limited ||
          size / static_cast<uint64_t>(facts.f_bsize) <= facts.f_bavail) {
        return Status();
      }
      errno = ENOSPC;
      return Failed("cannot allocate");
    }
    const int result = RetryInterrupted(
        [&] { return ::fallocate(fd_.get(), 0, 0, static_cast<off_t>(size)); });
    if (result != 0 && (errno == ENOSPC || errno == EDQUOT || errno == EFBIG ||
                        errno == EIO)) {
      return Failed("cannot allocate");
    }
    return Status();
  }

  void OpenDirect() {
    const std::string path = PathOfFd(fd_.get());
    UniqueFd fd(RetryInterrupted(
        [&] { return ::open(path.c_str(), O_WRONLY | O_DIRECT | O_CLOEXEC); }));
    if (fd.get() >= 0) direct_.emplace(std::move(fd), fd_.get());
  }

  // Gives the new file the owner, the mode and the access control list of the
  // old one. Whatever cannot be kept widens no permission.
  void KeepMode() {
    struct stat old;
    if (::stat(path().c_str(), &old) != 0 || !S_ISREG(old.st_mode)) {
      return;
    }
    struct stat made;
    if (::fstat(fd_.get(), &made) != 0) made = {};
    // Only root may change the owner; the group may be any of the user's. If
    // either differs, drop the set-user-ID, set-group-ID and sticky bits.
    const bool owner_kept = made.st_uid == old.st_uid ||
                            ::fchown(fd_.get(), old.st_uid, old.st_gid) == 0;
    const bool group_kept =
        ::fstat(fd_.get(), &made) == 0 &&
        (made.st_gid == old.st_gid ||
         ::fchown(fd_.get(), static_cast<uid_t>(-1), old.st_gid) == 0);
    mode_t mode = old.st_mode & (owner_kept && group_kept ? 07777 : 0777);
    const AccessList list = AccessListOf(path());
    const bool list_kept = group_kept && SetAccessList(fd_.get(), list);
    // The mode of a file with a list has the list's mask for its group's bits.
    if (!list_kept && list.has_entries()) mode &= ~S_IRWXG | list.group_bits();
    // What the old group might do, only everybody may do now.
    if (!group_kept) mode &= ~S_IRWXG | (mode & S_IRWXO) << 3;
    if (::fstat(fd_.get(), &made) != 0 || (made.st_mode & 07777) != mode) {
      ::fchmod(fd_.get(), mode);
    }
  }

  // Gives a file without a name a temporary one, which needs space in the
  // folder. Does nothing if it has one.
  Status TakeTemporaryName() {
    for (int number = 0; temporary_.empty(); ++number) {
      const std::string temporary = TemporaryName(path(), number);
      if (::linkat(AT_FDCWD, PathOfFd(fd_.get()).c_str(), AT_FDCWD,
                   temporary.c_str(), AT_SYMLINK_FOLLOW) == 0) {
        temporary_ = temporary;
      } else if (errno != EEXIST) {
        return Failed("cannot name");
      }
    }
    return Status();
  }

  // Requires: the file has a temporary name.
  Status TakeName(uint64_t size) {
    if (options_.existing == Existing::kRefuse) {
      HAULWAY_TRY(TakeFreeName());
    } else if (::rename(temporary_.c_str(), path().c_str()) != 0) {
      const bool is_mount = errno == EBUSY || errno == EXDEV;
      if (is_mount && !is_of_set_) return Overwrite(size);
      return Failed("cannot replace");
    }
    temporary_.clear();
    if (is_of_set_ || !durable()) return Status();
    return SyncFolder(FolderOfPath(path()), fd_.get());
  }

  // Renames the temporary. Fails if the name exists.
  Status TakeFreeName() {
    const char* const name = path().c_str();
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, name,
                    RENAME_NOREPLACE) == 0) {
      return Status();
    }
    // EINVAL: the file system does not support RENAME_NOREPLACE.
    if (errno == EINVAL && ::link(temporary_.c_str(), name) == 0) {
      ::unlink(temporary_.c_str());
      return Status();
    }
    return errno == EEXIST ? AlreadyThere(path()) : Failed("cannot name");
  }

  Status WriteParts(uint64_t offset,
                    std::span<const std::span<const std::byte>> parts) {
    if (!direct_.has_value()) return WriteToPageCache(offset, parts);
    if (!has_choice_) return direct_->WriteAt(offset, parts);
    uint64_t bytes = 0;
    for (const std::span<const std::byte> part : parts) bytes += part.size();
    if (bytes < kSmallestTimed) return WriteToPageCache(offset, parts);
    return WriteByRoute(offset, parts, bytes);
  }

  // Writes through the page cache, one thread at a time: Linux locks a file
  // while it copies to its page cache, and other threads would spin. The size
  // of a write determines the size of the memory blocks that Linux allocates.
  Status WriteToPageCache(uint64_t offset,
                          std::span<const std::span<const std::byte>> parts) {
    uint64_t bytes = 0;
    for (const std::span<const std::byte> part : parts) bytes += part.size();
    const std::lock_guard lock(turn_);
    return WriteInTurn(offset, parts, bytes);
  }

  // Requires: the caller holds turn_.
  Status WriteInTurn(uint64_t offset,
                     std::span<const std::span<const std::byte>> parts,
                     uint64_t bytes) {
    if (bytes < kSmallestTimed) return WriteFully(fd_.get(), offset, parts);
    const PageKind kind = blocks_.Next();
    const PageTimer timer(&blocks_, kind, bytes, kLargePageCacheWrite);
    return WriteFully(
        fd_.get(), offset, parts,
        kind == PageKind::kHuge ? kLargePageCacheWrite : kPageCacheWrite);
  }

  // Writes by the faster route, and times the write. Requires: both routes are
  // open.
  Status WriteByRoute(uint64_t offset,
                      std::span<const std::span<const std::byte>> parts,
                      uint64_t bytes) {
    const WriteWay way = route_.Next();
    std::unique_lock turn(turn_, std::defer_lock);
    if (way == WriteWay::kCached) turn.lock();
    const auto start = std::chrono::steady_clock::now();
    Status status = way == WriteWay::kCached ? WriteInTurn(offset, parts, bytes)
                                             : direct_->WriteAt(offset, parts);
    const std::chrono::nanoseconds took =
        std::chrono::steady_clock::now() - start;
    route_.Took(way, bytes, static_cast<uint64_t>(took.count()));
    return status;
  }

  // Overwrites the target with the finished file. Data of this process that was
  // loaded from the target, which may be the data being saved, stays unchanged.
  Status Overwrite(uint64_t size) {
    const UniqueFd out = OpenTarget();
    struct stat facts;
    if (out.get() < 0 || ::fstat(out.get(), &facts) != 0) {
      return Failed("cannot open");
    }
    HAULWAY_TRY(DetachMappings(facts, path()));
    Status status = ExchangeContent(out.get(), fd_.get(), size, durable());
    if (!status.ok()) {
      return std::move(status).In(fmt::format("overwriting {}", Quote(path())));
    }
    RemoveTemporary();
    return WriteBack(out.get()) ? Status() : Failed("cannot write");
  }

  void RemoveTemporary() {
    // Another process may have committed the file, and a third have its name.
    if (!temporary_.empty() &&
        (!is_of_set_ || LeadsTo(temporary_, fd_.get()))) {
      ::unlink(temporary_.c_str());
    }
    temporary_.clear();
  }

  const std::string name_;
  const FinalName target_;
  const FileSinkOptions options_;
  const bool is_of_set_;
  UniqueFd fd_;
  std::optional<DirectWriter> direct_;
  bool has_choice_ = false;  // Whether each write may take either route.
  WriteRoute route_;
  std::mutex turn_;
  PageChooser blocks_;     // Chooses the page size in the page cache.
  std::string temporary_;  // The temporary name; empty if none.
  bool in_place_ = false;
  bool is_prepared_ = false;
  const pid_t owner_ = ::getpid();
};

// The longest time that a cancelled wait for a pipe's reader goes on.
constexpr int kReaderMs = 50;

Status CheckCancelled() {
  if (!CancelScope::IsCancelled()) return Status();
  return Status(Code::kCancelled, "waiting for the reader was cancelled");
}

// Opens a device or a pipe. Waits until a pipe has a reader.
Result<UniqueFd> OpenStream(const std::string& path, bool is_pipe,
                            std::string_view name) {
  while (true) {
    // O_NONBLOCK: waits can be cancelled.
    UniqueFd fd(RetryInterrupted([&] {
      return ::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    }));
    if (fd.get() >= 0) return fd;
    if (!is_pipe || errno != ENXIO) {
      return Status::FromErrno(errno,
                               fmt::format("cannot open {}", QuotePath(name)));
    }
    HAULWAY_TRY(CheckCancelled());
    (void)::poll(nullptr, 0, kReaderMs / 5);
  }
}

// Makes a sink for a device or a pipe: bytes are written in order and at once.
std::unique_ptr<ByteSink> MakeStreamSink(UniqueFd fd, std::string name) {
  auto shared = std::make_shared<UniqueFd>(std::move(fd));
  return MakeFunctionSink(
      [shared](std::span<const std::byte> bytes) -> Status {
        while (!bytes.empty()) {
          const ssize_t count =
              ::write(shared->get(), bytes.data(), bytes.size());
          if (count < 0 && errno == EINTR) continue;
          if (count < 0 && errno == EAGAIN) {
            HAULWAY_TRY(CheckCancelled());
            pollfd room = {shared->get(), POLLOUT, 0};
            (void)::poll(&room, 1, kReaderMs);
            continue;
          }
          if (count < 0) return Status::FromErrno(errno, "write failed");
          bytes = bytes.subspan(static_cast<size_t>(count));
        }
        return Status();
      },
      std::move(name));
}

// Where a file will be written.
struct Place {
  FinalName name;
  FileSinkOptions options;
  std::optional<mode_t> mode;  // The mode of the file that is there.
};

Result<Place> PlaceOf(const std::string& path, const FileSinkOptions& options) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  path.empty() ? "path is empty" : "path holds a NUL byte");
  }
  Place place;
  place.options = options;
  HAULWAY_ASSIGN(place.name, FollowLinks(path));
  struct stat facts;
  if (::stat(place.name.path.c_str(), &facts) == 0) place.mode = facts.st_mode;
  const bool is_file = !place.mode.has_value() || S_ISREG(*place.mode);
  if (is_file && place.name.has_name && place.name.path != path &&
      (options.replaces_link || IsNamedByHash(place.name.path))) {
    place.name.path = path;
    // The file that the link leads to is another's.
    place.options.is_read = true;
  }
  if (path.back() == '/' || (!is_file && S_ISDIR(*place.mode))) {
    return Status(Code::kUnsupported,
                  fmt::format("cannot write to a folder: {}", QuotePath(path)));
  }
  if (place.mode.has_value() && options.existing == Existing::kRefuse) {
    return AlreadyThere(path);
  }
  return place;
}

}  // namespace

Result<std::unique_ptr<ByteSink>> OpenFileSink(std::string path,
                                               const FileSinkOptions& options) {
  HAULWAY_ASSIGN(Place place, PlaceOf(path, options));
  if (place.mode.has_value() && !S_ISREG(*place.mode)) {
    HAULWAY_ASSIGN(UniqueFd fd,
                   OpenStream(place.name.path, S_ISFIFO(*place.mode), path));
    return MakeStreamSink(std::move(fd), std::move(path));
  }
  return std::unique_ptr<ByteSink>(
      std::make_unique<FileSink>(std::move(path), std::move(place.name),
                                 place.options, /*is_of_set=*/false));
}

Result<std::unique_ptr<FileOfSet>> OpenFileOfSet(
    std::string path, const FileSinkOptions& options) {
  HAULWAY_ASSIGN(Place place, PlaceOf(path, options));
  if (!place.name.has_name ||
      (place.mode.has_value() && !S_ISREG(*place.mode))) {
    return Status(Code::kUnsupported,
                  fmt::format("{} is no regular file, so that it cannot become "
                              "visible together with others",
                              QuotePath(path)));
  }
  return std::unique_ptr<FileOfSet>(
      std::make_unique<FileSink>(std::move(path), std::move(place.name),
                                 place.options, /*is_of_set=*/true));
}

}  // namespace haulway
