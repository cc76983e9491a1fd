// System calls, each in one place: retried, named, with the path in errors.

#pragma once

#include <sys/uio.h>

#include <csignal>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

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

// What is written to the page cache at once. Linux takes as large a block of
// memory for it as is written, and large blocks may be with the host of a
// virtual machine, which takes 4 to 20 ms to give one back: 1 GiB in writes of
// 512 KiB to 4 MiB took 1.8 to 4.1 s some seconds after the last program ended,
// in writes of 64 to 256 KiB 0.25 to 0.4 s, and 0.25 to 0.3 s either way where
// the memory was at hand.
inline constexpr uint64_t kPageCacheWrite = 128 * kKiB;

// Writes `parts`, one after another, from `offset`, up to the next multiple of
// `at_once` in a call: repeats short writes, retries EINTR.
Status WriteFully(int fd, uint64_t offset,
                  std::span<const std::span<const std::byte>> parts,
                  uint64_t at_once = kPageCacheWrite);

// Has the kernel copy `length` bytes of `from` at `from_offset` to `offset` of
// `to` (copy_file_range(2)): repeats short copies, retries EINTR. kUnsupported
// where it does not, perhaps after a part was copied; kTruncated if `from` ends
// first.
Status CopyFully(int to, uint64_t offset, int from, uint64_t from_offset,
                 uint64_t length);

// A file without a name in a folder, to write to and to read back.
Result<UniqueFd> OpenNameless(const std::string& folder);

// Blocks all signals for the calling thread, until the end of the scope.
// Threads that are started meanwhile never run a handler of the program's.
class AllSignalsBlocked {
 public:
  AllSignalsBlocked();
  AllSignalsBlocked(const AllSignalsBlocked&) = delete;
  AllSignalsBlocked& operator=(const AllSignalsBlocked&) = delete;
  ~AllSignalsBlocked();

 private:
  sigset_t before_;
};

// CPUs this process may use: affinity and cgroup quota counted. At least 1.
int UsableCpus();

}  // namespace haulway
