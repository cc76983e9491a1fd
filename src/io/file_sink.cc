// Design: an unnamed file (O_TMPFILE) takes the target's name in one step, by a
// link under a hidden name and a rename. If the file system has no unnamed
// files, the file has a hidden name from the start; if its process dies, the
// next run of the same user removes it. Space is allocated in advance:
// otherwise ext4 reserves it block by block (219 ms per GiB instead of 140).
// Durable files are written with direct I/O if possible; other files, if the
// page cache turns out to be slower (WriteRoute).
//
// Writing to the target itself would leave a partial file after a crash and
// change existing mappings of the file. It is done only if no file can be
// created beside the target. Direct I/O is used from 32 MiB on, where it
// becomes faster.

#include <dirent.h>
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
#include "io/file_system.h"
#include "io/own_mappings.h"
#include "io/write_route.h"

namespace haulway {

namespace {

// From this size on, direct I/O is faster.
constexpr uint64_t kDirectBytes = 32 * kMiB;
// Size of a page cache write when large blocks are faster, and smallest write
// that is timed to find out.
constexpr uint64_t kLargePageCacheWrite = kMiB;
constexpr uint64_t kSmallestTimed = 512 * kKiB;
constexpr std::string_view kTemporarySuffix = ".haulway-tmp";
// Leaves room for the parts that Temporary() adds, in a name of 255 bytes.
constexpr size_t kLongestStem = 200;

std::string PathOfFd(int fd) { return fmt::format("/proc/self/fd/{}", fd); }

Status IsThere(std::string_view path) {
  return Status(
      Code::kInvalidArgument,
      fmt::format("{} is there already: expected a new name", Quote(path)));
}

// A Target is the final name of the file.
class Target {
 public:
  explicit Target(FinalName name)
      : path_(std::move(name.path)), has_name_(name.has_name) {
    const size_t slash = path_.rfind('/');
    folder_ = slash == std::string::npos ? "." : path_.substr(0, slash + 1);
    stem_ = path_.substr(slash == std::string::npos ? 0 : slash + 1)
                .substr(0, kLongestStem);
  }

  const std::string& path() const { return path_; }
  // Whether another file can take the target's place.
  bool has_name() const { return has_name_; }
  const std::string& folder() const { return folder_; }

  std::string Temporary(int number) const {
    return fmt::format("{}/.{}.{}-{}{}", folder_, stem_, ::getpid(), number,
                       kTemporarySuffix);
  }

  // Removes the leftovers of killed runs: temporaries of this user that are not
  // locked.
  void Sweep() const {
    const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(folder_.c_str()),
                                                     &::closedir);
    if (folder == nullptr) return;
    while (const dirent* entry = ::readdir(folder.get())) {
      if (!IsTemporary(entry->d_name)) continue;
      // O_NONBLOCK: do not wait for a pipe of that name.
      const UniqueFd fd(
          ::openat(::dirfd(folder.get()), entry->d_name,
                   O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
      struct stat facts;
      if (fd.get() >= 0 && ::fstat(fd.get(), &facts) == 0 &&
          S_ISREG(facts.st_mode) && facts.st_uid == ::geteuid() &&
          ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 &&
          StillNames(::dirfd(folder.get()), entry->d_name, facts)) {
        ::unlinkat(::dirfd(folder.get()), entry->d_name, 0);
      }
    }
  }

 private:
  // Returns whether the name is still that of the file. Its owner may have
  // removed it before it was locked, and another have taken the name. While it
  // is locked, nobody else removes it.
  static bool StillNames(int folder, const char* name,
                         const struct stat& file) {
    struct stat named;
    return ::fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
           named.st_dev == file.st_dev && named.st_ino == file.st_ino;
  }

  // Returns whether Temporary() of some process could have made `name`.
  bool IsTemporary(std::string_view name) const {
    const std::string prefix = "." + stem_ + ".";
    if (!name.starts_with(prefix) || !name.ends_with(kTemporarySuffix) ||
        name.size() < prefix.size() + kTemporarySuffix.size()) {
      return false;
    }
    name.remove_prefix(prefix.size());
    name.remove_suffix(kTemporarySuffix.size());
    const auto is_number = [](std::string_view text) {
      return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    };
    const size_t dash = name.find('-');
    return dash != name.npos && is_number(name.substr(0, dash)) &&
           is_number(name.substr(dash + 1));
  }

  std::string path_;
  bool has_name_;
  std::string folder_;
  std::string stem_;
};

class FileSink : public ByteSink {
 public:
  FileSink(std::string name, Target target, const FileSinkOptions& options)
      : name_(std::move(name)), target_(std::move(target)), options_(options) {}
  ~FileSink() override {
    // The temporary of a process that forked is not the child's.
    if (owner_ == ::getpid()) RemoveTemporary();
  }

  std::string_view name() const override { return name_; }

  Result<SinkTraits> Begin(std::optional<uint64_t> size) override {
    HAULWAY_TRY(OpenFile());
    if (size.has_value()) HAULWAY_TRY(Allocate(*size));
    const bool is_large = size >= kDirectBytes;
    const bool direct = options_.direct.value_or(durable() && is_large);
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
      return Status(Code::kUnsupported, "what is copied is in the page cache");
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
    if (!in_place_) KeepMode();
    if (durable() &&
        RetryInterrupted([&] { return ::fsync(fd_.get()); }) != 0) {
      // Do not retry: dirty pages may count as clean now, so success would
      // prove nothing.
      return Failed("cannot sync");
    }
    if (!durable() && !WriteBack(fd_.get())) return Failed("cannot write");
    if (!in_place_) HAULWAY_TRY(TakeTemporaryName());
    is_prepared_ = true;
    return Status();
  }

  Status Commit(uint64_t size) override {
    if (!is_prepared_) HAULWAY_TRY(Prepare(size));
    return in_place_ ? Status() : TakeName(size);
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
    return Status::FromErrno(errno,
                             fmt::format("{} {}", what, Quote(target_.path())));
  }

  Status OpenFile() {
    if (target_.has_name()) target_.Sweep();
    int fd = -1;
    errno = target_.has_name() ? EOPNOTSUPP : EACCES;
    if (options_.temporary == nullptr && target_.has_name()) {
      fd = RetryInterrupted([&] {
        return ::open(target_.folder().c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC,
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
      if (options_.is_read) {
        return Failed("cannot make a new file beside");
      }
      const int old_error = errno;
      fd = RetryInterrupted(
          [&] { return ::open(target_.path().c_str(), O_RDWR | O_CLOEXEC); });
      in_place_ = fd >= 0;
      errno = old_error;
    }
    if (fd < 0) return Failed("cannot create");
    fd_ = UniqueFd(fd);
    if (in_place_) HAULWAY_TRY(DetachFromTarget(fd));
    if (options_.temporary != nullptr) *options_.temporary = temporary_;
    return Status();
  }

  // Keeps this process's data that was loaded from the target unchanged; it may
  // be the data being saved.
  Status DetachFromTarget(int target) const {
    struct stat facts;
    if (::fstat(target, &facts) != 0) return Failed("cannot look at");
    return DetachMappings(facts, target_.path());
  }

  // Creates the temporary and locks it. It has at most the target's
  // permissions, because the data may be secret.
  int CreateTemporary() {
    struct stat old;
    const bool exists = ::stat(target_.path().c_str(), &old) == 0;
    const mode_t mode =
        exists || options_.is_private ? S_IRUSR | S_IWUSR : 0666;
    for (int number = 0;; ++number) {
      temporary_ = target_.Temporary(number);
      const int fd = RetryInterrupted([&] {
        return ::open(temporary_.c_str(),
                      O_CREAT | O_EXCL | O_NOFOLLOW | O_RDWR | O_CLOEXEC, mode);
      });
      if (fd >= 0 && IsKept(fd)) return fd;
      if (fd >= 0) {
        ::close(fd);
      } else if (errno != EEXIST) {
        temporary_.clear();
        return fd;
      }
    }
  }

  // Locks the new temporary. Returns false if a Sweep() took it for the
  // leftover of a killed run before it was locked: then it has lost its name,
  // or will.
  static bool IsKept(int fd) {
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return false;
    }
    struct stat made;
    return ::fstat(fd, &made) != 0 || made.st_nlink != 0;
  }

  // Allocates the space, to detect a full disk at once and to avoid allocation
  // block by block, which on ext4 is a third of the time of a page cache write.
  // File systems without fallocate() are left alone. On tmpfs only the free
  // space is compared, since allocation would clear all the memory first.
  Status Allocate(uint64_t size) {
    struct statfs facts;
    // One write allocates its space at once anyway.
    if (size <= kPageCacheWrite || in_place_) return Status();
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
    if (::stat(target_.path().c_str(), &old) != 0 || !S_ISREG(old.st_mode)) {
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
    const AccessList list = AccessListOf(target_.path());
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
      const std::string temporary = target_.Temporary(number);
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
    } else if (::rename(temporary_.c_str(), target_.path().c_str()) != 0) {
      if (errno == EBUSY || errno == EXDEV) return Overwrite(size);
      return Failed("cannot replace");
    }
    temporary_.clear();
    return durable() ? SyncFolder(target_.folder(), fd_.get()) : Status();
  }

  // Renames the temporary. Fails if the name exists.
  Status TakeFreeName() {
    const char* const name = target_.path().c_str();
    if (::renameat2(AT_FDCWD, temporary_.c_str(), AT_FDCWD, name,
                    RENAME_NOREPLACE) == 0) {
      return Status();
    }
    // EINVAL: the file system does not support RENAME_NOREPLACE.
    if (errno == EINVAL && ::link(temporary_.c_str(), name) == 0) {
      ::unlink(temporary_.c_str());
      return Status();
    }
    return errno == EEXIST ? IsThere(target_.path()) : Failed("cannot name");
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

  // Copies the finished file over its target, which is a mount point.
  Status Overwrite(uint64_t size) {
    const UniqueFd out(RetryInterrupted(
        [&] { return ::open(target_.path().c_str(), O_WRONLY | O_CLOEXEC); }));
    if (out.get() < 0) return Failed("cannot open");
    HAULWAY_TRY(DetachFromTarget(out.get()));
    std::string block(kMiB, '\0');
    for (uint64_t done = 0; done < size;) {
      const auto bytes =
          std::as_writable_bytes(std::span(block))
              .subspan(0, std::min<uint64_t>(block.size(), size - done));
      HAULWAY_TRY(ReadFully(fd_.get(), done, bytes));
      const std::span<const std::byte> part = bytes;
      HAULWAY_TRY(WriteFully(out.get(), done, std::span(&part, 1)));
      done += bytes.size();
    }
    if (::ftruncate(out.get(), static_cast<off_t>(size)) != 0 ||
        (durable() &&
         RetryInterrupted([&] { return ::fsync(out.get()); }) != 0) ||
        !WriteBack(out.get())) {
      return Failed("cannot finish");
    }
    RemoveTemporary();
    return Status();
  }

  void RemoveTemporary() {
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
    temporary_.clear();
  }

  const std::string name_;
  const Target target_;
  const FileSinkOptions options_;
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
                               fmt::format("cannot open {}", Quote(name)));
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

}  // namespace

Result<std::unique_ptr<ByteSink>> OpenFileSink(std::string path,
                                               const FileSinkOptions& options) {
  if (path.empty() || path.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument,
                  path.empty() ? "path is empty" : "path holds a NUL byte");
  }
  HAULWAY_ASSIGN(FinalName name, FollowLinks(path));
  struct stat facts;
  const bool exists = ::stat(name.path.c_str(), &facts) == 0;
  FileSinkOptions own = options;
  if (options.replaces_link && name.has_name && name.path != path &&
      (!exists || S_ISREG(facts.st_mode))) {
    name.path = path;
    own.is_read = true;  // The file that the link leads to is another's.
  }
  Target target(std::move(name));
  if (path.back() == '/' || (exists && S_ISDIR(facts.st_mode))) {
    return Status(Code::kUnsupported,
                  fmt::format("cannot write to a folder: {}", Quote(path)));
  }
  if (exists && options.existing == Existing::kRefuse) return IsThere(path);
  if (exists && !S_ISREG(facts.st_mode)) {
    HAULWAY_ASSIGN(UniqueFd fd,
                   OpenStream(target.path(), S_ISFIFO(facts.st_mode), path));
    return MakeStreamSink(std::move(fd), std::move(path));
  }
  return std::unique_ptr<ByteSink>(
      std::make_unique<FileSink>(std::move(path), std::move(target), own));
}

}  // namespace haulway
