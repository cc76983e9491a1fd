#include "io/exchange.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <span>
#include <vector>

#include "base/posix.h"
#include "haulway/options.h"

namespace haulway {

namespace {

constexpr uint64_t kBlock = kMiB;

class Exchange {
 public:
  Exchange(int to, int from, uint64_t old_size, uint64_t new_size)
      : to_(to), from_(from), old_size_(old_size), new_size_(new_size) {
    const uint64_t end = std::max(old_size, new_size);
    kept_from_ = (end + kBlock - 1) / kBlock * kBlock;
  }

  Status Run(bool durable) {
    for (uint64_t at = kept_from_; at != 0;) {
      at -= kBlock;
      HAULWAY_TRY(Read(to_, at, old_size_, &old_));
      HAULWAY_TRY(Read(from_, at, new_size_, &new_));
      HAULWAY_TRY(Write(from_, at, old_));
      kept_from_ = at;
      HAULWAY_TRY(Write(to_, at, new_));
    }
    return Finish(new_size_, durable);
  }

  // Puts the old content back.
  Status Undo(bool durable) {
    const uint64_t end = old_size_;
    for (uint64_t at = kept_from_; at < end; at += kBlock) {
      HAULWAY_TRY(Read(from_, at, old_size_, &old_));
      HAULWAY_TRY(Write(to_, at, old_));
    }
    return Finish(old_size_, durable);
  }

 private:
  // Reads what a file of `size` bytes has of a block.
  static Status Read(int fd, uint64_t at, uint64_t size,
                     std::vector<std::byte>* block) {
    block->resize(std::min(kBlock, size - std::min(size, at)));
    return ReadFully(fd, at, *block);
  }

  static Status Write(int fd, uint64_t at,
                      const std::vector<std::byte>& block) {
    const std::span<const std::byte> part = block;
    return part.empty() ? Status() : WriteFully(fd, at, {&part, 1});
  }

  Status Finish(uint64_t size, bool durable) const {
    if (::ftruncate(to_, static_cast<off_t>(size)) != 0) {
      return Status::FromErrno(errno, "cannot set the size");
    }
    while (durable && ::fsync(to_) != 0) {
      if (errno != EINTR) return Status::FromErrno(errno, "cannot sync");
    }
    return Status();
  }

  const int to_, from_;
  const uint64_t old_size_, new_size_;
  uint64_t kept_from_;  // From here on `from_` has the old content.
  std::vector<std::byte> old_, new_;
};

}  // namespace

Status ExchangeContent(int to, int from, uint64_t size, bool durable) {
  struct stat facts;
  if (::fstat(to, &facts) != 0) {
    return Status::FromErrno(errno, "cannot look at the file");
  }
  Exchange exchange(to, from, static_cast<uint64_t>(facts.st_size), size);
  Status status = exchange.Run(durable);
  if (status.ok()) return status;
  const Status undone = exchange.Undo(durable);
  if (undone.ok()) return status;
  return Status(status.code(),
                fmt::format("{}; the old content could not be put back: {}",
                            status.message(), undone.message()));
}

}  // namespace haulway
