// Direct I/O (O_DIRECT): reads around the page cache. Only whole blocks can be
// read, so partial blocks go through separate memory.

#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

#include "base/kept_memory.h"
#include "base/posix.h"
#include "haulway/buffer.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "io/local_source.h"

namespace haulway {

// Returns the alignment that O_DIRECT requires of offsets, lengths and
// addresses, or 0 if direct I/O is refused. Opens the file again only if the
// system does not report the alignment.
uint64_t DirectAlignment(int fd);

// A DirectPiece is one read of whole blocks, and the part of it that is wanted:
// the first length() bytes of the range it was cut from.
class DirectPiece {
 public:
  static constexpr uint64_t kLargest = 4 * kMiB;

  DirectPiece() = default;
  // Makes the next piece of a read of `out` from `offset`. If `out` and
  // `offset` agree modulo the alignment, blocks that are wanted whole are read
  // in place. Otherwise all blocks go through `blocks`, in even parts.
  // Requires: `out` is not empty; the alignment is a power of two; `blocks` is
  // aligned and holds a whole number of blocks, at least two.
  DirectPiece(uint64_t offset, std::span<std::byte> out, uint64_t alignment,
              std::span<std::byte> blocks);

  uint64_t offset() const { return offset_; }
  uint64_t length() const { return wanted_.size(); }
  std::span<const iovec> vectors() const { return {vectors_.data(), count_}; }
  // Copies the wanted bytes among the first `read` bytes to their places.
  // Returns the number of wanted bytes.
  uint64_t Take(uint64_t read) const;
  // Reads the wanted bytes from number `done` on through the page cache.
  Status Finish(int buffered_fd, uint64_t done) const;

 private:
  uint64_t offset_ = 0;  // File offset of the first block.
  uint64_t head_ = 0;    // Bytes of the first block before the wanted ones.
  std::span<std::byte> wanted_{};
  std::array<iovec, 3> vectors_{};
  size_t count_ = 0;
};

// A DirectFile is a LocalFile that is opened a second time, with O_DIRECT.
class DirectFile {
 public:
  // Fails with kUnsupported if the file system refuses O_DIRECT.
  static Result<std::unique_ptr<DirectFile>> Open(
      std::shared_ptr<const LocalFile> file);

  // Returns a file that reads through the page cache if O_DIRECT is refused.
  static std::unique_ptr<DirectFile> OpenOrBuffered(
      std::shared_ptr<const LocalFile> file);

  int fd() const { return fd_.get() >= 0 ? fd_.get() : buffered_fd(); }
  int buffered_fd() const { return file_->fd.get(); }
  uint64_t alignment() const { return alignment_; }

  // Fills `out` from `offset`. Reads through the page cache what the file
  // system refuses to read with O_DIRECT. Fails with kTruncated if the file
  // ends first. Requires: the range lies within the file's original size.
  Status Read(uint64_t offset, std::span<std::byte> out) const;

  // Returns memory for blocks.
  Result<Buffer> TakeBlocks() const;

 private:
  DirectFile(std::shared_ptr<const LocalFile> file, UniqueFd fd,
             uint64_t alignment)
      : file_(std::move(file)), fd_(std::move(fd)), alignment_(alignment) {}

  const std::shared_ptr<const LocalFile> file_;
  const UniqueFd fd_;
  const uint64_t alignment_;
  const KeptMemory memory_{64};  // For eight rings of eight requests.
};

}  // namespace haulway
