// A local file that is changed where it is.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "base/posix.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// An EditableFile is open for reading and writing, and locked against others
// who edit it (flock), until it goes out of scope. WriteAt() may be called
// from many threads at once, the rest from one.
class EditableFile {
 public:
  // Fails with kUnavailable if someone else has it, kUnsupported if it is no
  // regular file, else as opening does.
  static Result<std::unique_ptr<EditableFile>> Open(std::string path,
                                                    Durability durability);

  const std::string& path() const { return path_; }
  Result<uint64_t> Size() const;
  // Writes past the end make the file longer.
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // What WriteAt() was given so far.
  uint64_t written_bytes() const { return written_bytes_.load(); }
  // Until this returned, nothing written is safe from loss of power.
  Status Flush() const;
  Status Truncate(uint64_t bytes) const;

  // Whether the file system inserts blocks. Changes nothing.
  bool CanInsert(uint64_t block_bytes) const;
  // Inserts zeros at `offset`, before the end of the file; what was there
  // moves up (fallocate(2), FALLOC_FL_INSERT_RANGE). Both must be multiples of
  // the file system's blocks.
  Status Insert(uint64_t offset, uint64_t bytes) const;

 private:
  EditableFile(UniqueFd fd, std::string path, Durability durability)
      : fd_(std::move(fd)), path_(std::move(path)), durability_(durability) {}

  const UniqueFd fd_;
  const std::string path_;
  const Durability durability_;
  std::atomic<uint64_t> written_bytes_{0};
};

}  // namespace haulway
