#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/posix.h"
#include "base/text.h"
#include "io/file_of_set.h"

namespace haulway {

namespace {

class WrittenFile : public FileOfSet {
 public:
  WrittenFile(std::string path, std::string temporary, UniqueFd fd)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        fd_(std::move(fd)) {}

  std::string_view name() const override { return path_; }
  const std::string& path() const override { return path_; }
  const std::string& temporary() const override { return temporary_; }
  bool HasName() const override { return LeadsTo(path_, fd_.get()); }

  Result<SinkTraits> Begin(std::optional<uint64_t>) override {
    return IsWritten();
  }
  Status WriteAt(uint64_t,
                 std::span<const std::span<const std::byte>>) override {
    return IsWritten();
  }
  Status Prepare(uint64_t) override { return Status(); }
  Status Commit(uint64_t) override {
    if (!LeadsTo(temporary_, fd_.get())) {
      return Status(Code::kUnavailable,
                    "the process that wrote it took it away: save again")
          .Of(path_);
    }
    if (::rename(temporary_.c_str(), path_.c_str()) == 0) return Status();
    return Status::FromErrno(
        errno, fmt::format("cannot replace {}", QuotePath(path_)));
  }

 private:
  Status IsWritten() const {
    return Status(Code::kInternal, "another process wrote this file");
  }

  const std::string path_;
  const std::string temporary_;
  const UniqueFd fd_;
};

}  // namespace

bool LeadsTo(const std::string& path, int fd) {
  // Opening asks a network file system again.
  const UniqueFd named(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat found;
  struct stat open;
  return (named.get() >= 0 ? ::fstat(named.get(), &found)
                           : ::stat(path.c_str(), &found)) == 0 &&
         ::fstat(fd, &open) == 0 && found.st_dev == open.st_dev &&
         found.st_ino == open.st_ino;
}

Result<std::unique_ptr<FileOfSet>> OpenWrittenFile(std::string path,
                                                   std::string temporary) {
  UniqueFd fd(::open(temporary.c_str(),
                     O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts;
  if (fd.get() < 0 || ::fstat(fd.get(), &facts) != 0) {
    return Status::FromErrno(
        errno, fmt::format("cannot open {}", QuotePath(temporary)));
  }
  if (!S_ISREG(facts.st_mode)) {
    return Status(Code::kUnsupported, "it is no regular file").Of(temporary);
  }
  return std::unique_ptr<FileOfSet>(std::make_unique<WrittenFile>(
      std::move(path), std::move(temporary), std::move(fd)));
}

}  // namespace haulway
