// Wrappers for system calls. They retry, and their errors name the path.

#pragma once

#include <sys/uio.h>

#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "haulway/options.h"
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

// Opens for reading; does not wait for a pipe's writer. Errors name the path.
Result<UniqueFd> OpenForReading(const std::string& path);

// Returns the size of a regular file. Fails with kUnsupported for anything
// else.
Result<uint64_t> RegularFileSize(int fd, const std::string& path);

// Returns the first `most` bytes of a regular file; nullopt if there is none.
Result<std::optional<std::string>> ReadSmallFile(const std::string& path,
                                                 uint64_t most);

// Repeats a system call while a signal interrupts it.
template <class Call>
int RetryInterrupted(Call call) {
  int result = 0;
  do {
    result = call();
  } while (result < 0 && errno == EINTR);
  return result;
}

// Fills `out` from `offset`. Continues after short reads and EINTR. Fails with
// kTruncated if the file ends first.
Status ReadFully(int fd, uint64_t offset, std::span<std::byte> out);

// Reads into `vectors` from `offset` with one call and returns the number of
// bytes read, which may be less than asked for. Retries EINTR.
Result<uint64_t> ReadOnce(int fd, uint64_t offset,
                          std::span<const iovec> vectors);

// Opens the file behind `fd` again, even if its name now refers to another
// file, with these flags of open(2). Errors name the path.
Result<UniqueFd> OpenAgain(int fd, int flags, const std::string& path);

// Size of one write to the page cache. Linux allocates page cache in blocks as
// large as the write. Large blocks may have to come from the host of a virtual
// machine, at 4 to 20 ms each. Some seconds after the last program ended, 1 GiB
// took 1.8 to 4.1 s in writes of 512 KiB to 4 MiB, and 0.25 to 0.4 s in writes
// of 64 to 256 KiB. With memory available, both took 0.25 to 0.3 s.
inline constexpr uint64_t kPageCacheWrite = 128 * kKiB;

// Writes `parts`, one after another, from `offset`. Each call writes at most up
// to the next multiple of `at_once`. Continues after short writes and EINTR.
Status WriteFully(int fd, uint64_t offset,
                  std::span<const std::span<const std::byte>> parts,
                  uint64_t at_once = kPageCacheWrite);

// Lets the kernel copy `length` bytes from `from` at `from_offset` to `to` at
// `offset` (copy_file_range(2)). Continues after short copies and EINTR. Fails
// with kUnsupported if the kernel cannot copy, perhaps after copying a part,
// and with kTruncated if `from` ends first.
Status CopyFully(int to, uint64_t offset, int from, uint64_t from_offset,
                 uint64_t length);

// Creates an unnamed file in `folder`, for writing and reading.
Result<UniqueFd> OpenNameless(const std::string& folder);

// Blocks all signals for the calling thread until the end of the scope. Threads
// started meanwhile inherit the mask, so they never run a signal handler of the
// program.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked();
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  ~AllSignalsBlocked();

 private:
  sigset_t before_;
};

}  // namespace haulway
