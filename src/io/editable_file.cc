#include "io/editable_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/falloc.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/posix.h"
#include "base/text.h"
#include "io/file_system.h"
#include "io/own_mappings.h"

namespace haulway {

namespace {

// Returns 0 or an errno.
template <class F>
int ErrorOf(F call) {
  return RetryInterrupted(call) < 0 ? errno : 0;
}

}  // namespace

Result<std::unique_ptr<EditableFile>> EditableFile::Open(
    std::string path, Durability durability) {
  if (path.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument, "path holds a NUL byte");
  }
  HAULWAY_ASSIGN(const FinalName final_name, FollowLinks(path));
  if (final_name.path != path && IsNamedByHash(final_name.path)) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("{} is a link to {}, which is named by the digest "
                    "of its content and must not change: expected "
                    "another file to write",
                    QuotePath(path), Quote(final_name.path)));
  }
  int fd = -1;
  const int error = ErrorOf([&] {
    fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
    return fd;
  });
  if (error != 0) {
    return Status::FromErrno(error,
                             fmt::format("cannot open {}", QuotePath(path)));
  }
  std::unique_ptr<EditableFile> file(
      new EditableFile(UniqueFd(fd), std::move(path), durability));
  HAULWAY_TRY(RegularFileSize(fd, file->path_).status());
  const int locked = ErrorOf([&] { return ::flock(fd, LOCK_EX | LOCK_NB); });
  if (locked == EWOULDBLOCK) {
    return Status(
        Code::kUnavailable,
        fmt::format("{} is being edited by someone else", Quote(file->path_)));
  }
  // If the file system has no locks, continue without one.
  if (locked != 0 && !HasNoLocks(locked)) {
    return Status::FromErrno(locked,
                             fmt::format("cannot lock {}", Quote(file->path_)));
  }
  // The previous owner of the lock may have replaced the file.
  struct stat held {};
  struct stat named {};
  if (::fstat(fd, &held) != 0 || ::stat(file->path_.c_str(), &named) != 0 ||
      held.st_dev != named.st_dev || held.st_ino != named.st_ino) {
    return Status(Code::kUnavailable,
                  fmt::format("{} was replaced by someone else meanwhile",
                              Quote(file->path_)));
  }
  return file;
}

Result<uint64_t> EditableFile::Size() const {
  return RegularFileSize(fd_.get(), path_);
}

Status EditableFile::WriteAt(uint64_t offset,
                             std::span<const std::byte> bytes) {
  if (bytes.empty()) return Status();
  written_bytes_.fetch_add(bytes.size(), std::memory_order_relaxed);
  Status status = WriteFully(fd_.get(), offset, std::span(&bytes, 1));
  if (!status.ok()) return std::move(status).Of(path_);
  return status;
}

Status EditableFile::Flush() const {
  if (durability_ == Durability::kNone) return Status();
  const int error = ErrorOf([&] { return ::fsync(fd_.get()); });
  if (error == 0) return Status();
  return Status::FromErrno(error,
                           fmt::format("cannot sync {}", QuotePath(path_)));
}

Status EditableFile::Truncate(uint64_t bytes) const {
  const int error = ErrorOf(
      [&] { return ::ftruncate(fd_.get(), static_cast<off_t>(bytes)); });
  if (error == 0) return Status();
  return Status::FromErrno(error,
                           fmt::format("cannot truncate {}", QuotePath(path_)));
}

bool EditableFile::IsMapped() const {
  struct stat facts {};
  return ::fstat(fd_.get(), &facts) != 0 || HasMappings(facts);
}

bool EditableFile::CanInsert(uint64_t block_bytes) const {
  const auto size = Size();
  if (!size.ok()) return false;
  // Inserting at or past the end always fails. EINVAL means that the file
  // system supports inserting.
  const uint64_t past = (*size / block_bytes + 1) * block_bytes;
  const int error = ErrorOf([&] {
    return ::fallocate(fd_.get(), FALLOC_FL_INSERT_RANGE,
                       static_cast<off_t>(past),
                       static_cast<off_t>(block_bytes));
  });
  return error == EINVAL;
}

Status EditableFile::Insert(uint64_t offset, uint64_t bytes) const {
  const int error = ErrorOf([&] {
    return ::fallocate(fd_.get(), FALLOC_FL_INSERT_RANGE,
                       static_cast<off_t>(offset), static_cast<off_t>(bytes));
  });
  if (error == 0) return Status();
  if (error == EOPNOTSUPP) {
    return Status(Code::kUnsupported,
                  "this file system cannot insert blocks into a file")
        .Of(path_);
  }
  return Status::FromErrno(
      error, fmt::format("cannot insert blocks into {}", QuotePath(path_)));
}

}  // namespace haulway
