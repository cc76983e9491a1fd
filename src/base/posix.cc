// Wrappers for system calls.
//
// Design: calls that a signal interrupts are repeated, and long transfers are
// split, because Linux moves at most 2 GiB at once. errno becomes a Status
// where it arises, with the path or the byte.

#include "base/posix.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "base/text.h"

namespace haulway {

namespace {

// Linux transfers at most 0x7ffff000 bytes per call (read(2)).
constexpr size_t kMaxTransfer = size_t{1} << 30;

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = other.Release();
  }
  return *this;
}

void UniqueFd::Close() {
  if (fd_ >= 0) ::close(fd_);
}

Result<UniqueFd> OpenForReading(const std::string& path) {
  if (path.find('\0') != std::string::npos) {
    return Status(Code::kInvalidArgument, "path holds a NUL byte");
  }
  const auto open = [&](int flags) {
    int fd = -1;
    do {
      fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | flags);
    } while (fd < 0 && errno == EINTR);
    return fd;
  };
  // O_NONBLOCK: opening a pipe would otherwise wait until a process writes to
  // it.
  UniqueFd fd(open(O_NONBLOCK));
  if (fd.get() < 0 && errno == EWOULDBLOCK) {
    fd = UniqueFd(open(0));  // Another program has a lease on the file.
  } else if (fd.get() >= 0) {
    ::fcntl(fd.get(), F_SETFL, 0);
  }
  if (fd.get() < 0) {
    return Status::FromErrno(errno,
                             fmt::format("cannot open {}", QuotePath(path)));
  }
  return fd;
}

Result<uint64_t> RegularFileSize(int fd, const std::string& path) {
  struct stat facts;
  if (::fstat(fd, &facts) != 0) {
    return Status::FromErrno(errno,
                             fmt::format("cannot stat {}", QuotePath(path)));
  }
  if (!S_ISREG(facts.st_mode)) {
    return Status(Code::kUnsupported,
                  fmt::format("not a regular file: {}", QuotePath(path)));
  }
  return static_cast<uint64_t>(facts.st_size);
}

Result<std::optional<std::string>> ReadSmallFile(const std::string& path,
                                                 uint64_t most) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOENT || errno == ENOTDIR) {
      return std::optional<std::string>();
    }
    return Status::FromErrno(errno, "cannot open").Of(path);
  }
  HAULWAY_ASSIGN(const uint64_t size, RegularFileSize(fd.get(), path));
  std::string text(std::min(size, most), '\0');
  HAULWAY_TRY(ReadFully(fd.get(), 0, std::as_writable_bytes(std::span(text))));
  return std::optional(std::move(text));
}

Status ReadFully(int fd, uint64_t offset, std::span<std::byte> out) {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t count = ::pread(fd, out.data() + done,
                                  std::min(out.size() - done, kMaxTransfer),
                                  static_cast<off_t>(offset + done));
    if (count < 0) {
      if (errno == EINTR) continue;
      return Status::FromErrno(errno, "read failed").At(offset + done);
    }
    if (count == 0) {
      return Status(Code::kTruncated,
                    fmt::format("file ends early: expected {} bytes, found {}",
                                out.size(), done))
          .At(offset + done);
    }
    done += static_cast<size_t>(count);
  }
  return Status();
}

Result<uint64_t> ReadOnce(int fd, uint64_t offset,
                          std::span<const iovec> vectors) {
  ssize_t count = 0;
  do {
    count = ::preadv(fd, vectors.data(), static_cast<int>(vectors.size()),
                     static_cast<off_t>(offset));
  } while (count < 0 && errno == EINTR);
  if (count < 0) return Status::FromErrno(errno, "read failed").At(offset);
  return static_cast<uint64_t>(count);
}

Result<UniqueFd> OpenAgain(int fd, int flags, const std::string& path) {
  const std::string link = fmt::format("/proc/self/fd/{}", fd);
  int again = -1;
  do {
    again = ::open(link.c_str(), flags | O_CLOEXEC);
  } while (again < 0 && errno == EINTR);
  if (again < 0) {
    return Status::FromErrno(
        errno, fmt::format("cannot open {} again", QuotePath(path)));
  }
  return UniqueFd(again);
}

Status WriteFully(int fd, uint64_t offset,
                  std::span<const std::span<const std::byte>> parts,
                  uint64_t at_once) {
  std::array<iovec, 64> vectors;
  // The first part that is not completely written, and the bytes of it that
  // are.
  size_t part = 0;
  size_t within = 0;
  while (part < parts.size()) {
    size_t count = 0;
    size_t bytes = 0;
    const size_t most = at_once - offset % at_once;
    for (size_t p = part; p < parts.size() && count < vectors.size(); ++p) {
      const std::span<const std::byte> rest =
          parts[p].subspan(p == part ? within : 0);
      const size_t length = std::min(rest.size(), most - bytes);
      // writev(2) takes pointers to non-const.
      vectors[count++] = {const_cast<std::byte*>(rest.data()), length};
      bytes += length;
      if (bytes == most) break;
    }
    ssize_t written = 0;
    if (bytes > 0) {
      written = ::pwritev(fd, vectors.data(), static_cast<int>(count),
                          static_cast<off_t>(offset));
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) {
        return Status::FromErrno(errno, "write failed").At(offset);
      }
      if (written == 0) return Status(Code::kIoError, "wrote 0 bytes");
    }
    offset += static_cast<uint64_t>(written);
    for (size_t done = static_cast<size_t>(written); part < parts.size();) {
      const size_t rest = parts[part].size() - within;
      if (done < rest) {
        within += done;
        break;
      }
      done -= rest;
      within = 0;
      ++part;
    }
  }
  return Status();
}

Status CopyFully(int to, uint64_t offset, int from, uint64_t from_offset,
                 uint64_t length) {
  while (length > 0) {
    auto in = static_cast<off64_t>(from_offset);
    auto out = static_cast<off64_t>(offset);
    const ssize_t copied = ::copy_file_range(
        from, &in, to, &out, std::min<uint64_t>(length, kMaxTransfer), 0);
    if (copied < 0 && errno == EINTR) continue;
    if (copied < 0) {
      switch (errno) {
        case EXDEV:
        case EINVAL:
        case EOPNOTSUPP:
        case ENOSYS:
        case EPERM:
        case EBADF:
        case ETXTBSY:
          return Status(Code::kUnsupported, "the kernel does not copy this");
        default:
          return Status::FromErrno(errno, "copy failed").At(offset);
      }
    }
    if (copied == 0) {
      return Status(Code::kTruncated, "file ends early").At(from_offset);
    }
    const auto bytes = static_cast<uint64_t>(copied);
    offset += bytes;
    from_offset += bytes;
    length -= bytes;
  }
  return Status();
}

Result<UniqueFd> OpenNameless(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0) return UniqueFd(fd);
  if (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL) {
    return Status::FromErrno(errno, "cannot make a file").Of(folder);
  }
  std::string name = folder + "/.haulway-spool-XXXXXX";
  const int named = ::mkostemp(name.data(), O_CLOEXEC);
  if (named < 0) {
    return Status::FromErrno(errno, "cannot make a file").Of(folder);
  }
  ::unlink(name.c_str());
  return UniqueFd(named);
}

AllSignalsBlocked::AllSignalsBlocked() {
  sigset_t all;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before_);
}

AllSignalsBlocked::~AllSignalsBlocked() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

}  // namespace haulway
