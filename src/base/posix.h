// System calls, each in one place: retried, named, with the path in errors.

#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "haulway/status.h"

namespace haulway {

// A UniqueFd is a file descriptor that is closed when it goes out of scope.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }
  int Release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }

 private:
  void Close();
  int fd_ = -1;
};

// Opens for reading, without waiting for whoever writes to a pipe. Errors name
// the path.
Result<UniqueFd> OpenForReading(const std::string& path);

// The size of a regular file; kUnsupported for anything else.
Result<uint64_t> RegularFileSize(int fd, const std::string& path);

// Fills `out` from `offset`: repeats short reads, retries EINTR; kTruncated if
// the file ends first.
Status ReadFully(int fd, uint64_t offset, std::span<std::byte> out);

// Reads into `vectors`, one after another, from `offset`; what could be read
// at once, which is less where the file ends or the system says so. Retries
// EINTR.
Result<uint64_t> ReadOnce(int fd, uint64_t offset,
                          std::span<const iovec> vectors);

// Opens the file that `fd` is, whatever its name leads to by now, with these
// flags of open(2). Errors name the path.
Result<UniqueFd> OpenAgain(int fd, int flags, const std::string& path);

// Writes `parts`, one after another, from `offset`: repeats short writes,
// retries EINTR.
Status WriteFully(int fd, uint64_t offset,
                  std::span<const std::span<const std::byte>> parts);

// CPUs this process may use: affinity and cgroup quota counted. At least 1.
int UsableCpus();

}  // namespace haulway
