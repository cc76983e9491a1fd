// Reading around the page cache, with O_DIRECT: whole blocks only, so that
// what is wanted of a block goes through memory of our own.

#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/posix.h"
#include "haulway/buffer.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "io/local_source.h"

namespace haulway {

// What O_DIRECT asks of offsets, lengths and addresses: a multiple of this;
// 0 where it is refused. Opens nothing where the system tells.
uint64_t DirectAlignment(int fd);

// A DirectPiece is one read of whole blocks, and what of it is wanted: the
// first length() bytes of the run it was cut from.
class DirectPiece {
 public:
  static constexpr uint64_t kLargest = 4 * kMiB;

  DirectPiece() = default;
  // The next piece of what fills `out` from `offset`. Where the two agree
  // modulo the alignment the blocks that are wanted whole are read in place;
  // otherwise all go through `blocks`, in even parts. Requires: `out` is not
  // empty; a power of two as alignment, of which `blocks` holds two at least, a
  // whole number of them, and is aligned.
  DirectPiece(uint64_t offset, std::span<std::byte> out, uint64_t alignment,
              std::span<std::byte> blocks);

  uint64_t offset() const { return offset_; }
  uint64_t length() const { return wanted_.size(); }
  std::span<const iovec> vectors() const { return {vectors_.data(), count_}; }
  // Puts the first `read` bytes of the blocks where they are wanted; returns
  // how many of the wanted ones that gave.
  uint64_t Take(uint64_t read) const;
  // Reads the wanted bytes from the one at `done` on through the page cache.
  Status Finish(int buffered_fd, uint64_t done) const;

 private:
  uint64_t offset_ = 0;  // Where the first block lies.
  uint64_t head_ = 0;    // Bytes of it before the first that is wanted.
  std::span<std::byte> wanted_{};
  std::array<iovec, 3> vectors_{};
  size_t count_ = 0;
};

// A DirectFile is a LocalFile opened once more, with O_DIRECT.
class DirectFile {
 public:
  // kUnsupported where the file system refuses O_DIRECT.
  static Result<std::unique_ptr<DirectFile>> Open(
      std::shared_ptr<const LocalFile> file);

  // Where O_DIRECT is refused, one that reads through the page cache.
  static std::unique_ptr<DirectFile> OpenOrBuffered(
      std::shared_ptr<const LocalFile> file);

  int fd() const { return fd_.get() >= 0 ? fd_.get() : buffered_fd(); }
  int buffered_fd() const { return file_->fd.get(); }
  uint64_t alignment() const { return alignment_; }

  // Fills `out` from `offset`; through the page cache what the file system
  // refuses to read around it. kTruncated if the file ends first. Requires:
  // the range lies within the file as it was.
  Status Read(uint64_t offset, std::span<std::byte> out) const;

  // Memory for blocks, from earlier reads that gave it back, or new.
  Result<Buffer> TakeBlocks() const;
  void GiveBack(Buffer blocks) const;

 private:
  DirectFile(std::shared_ptr<const LocalFile> file, UniqueFd fd,
             uint64_t alignment)
      : file_(std::move(file)), fd_(std::move(fd)), alignment_(alignment) {}

  const std::shared_ptr<const LocalFile> file_;
  const UniqueFd fd_;
  const uint64_t alignment_;
  mutable std::mutex mutex_;
  mutable std::vector<Buffer> spare_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway
