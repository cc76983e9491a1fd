// A local file that is edited in place.

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

// An EditableFile is open for reading and writing, and holds a lock (flock)
// against other editors. Threads: WriteAt() may be called from many threads at
// once, the other methods from one.
class EditableFile {
 public:
  // Fails with kUnavailable if another process edits the file, with
  // kUnsupported if it is not a regular file, and if the file cannot be opened.
  static Result<std::unique_ptr<EditableFile>> Open(std::string path,
                                                    Durability durability);

  const std::string& path() const { return path_; }
  Result<uint64_t> Size() const;
  // Writes past the end extend the file.
  Status WriteAt(uint64_t offset, std::span<const std::byte> bytes);
  // Returns the sum of the sizes passed to WriteAt().
  uint64_t written_bytes() const { return written_bytes_.load(); }
  // Makes writes durable: earlier ones may be lost in a power failure until
  // Flush() returns.
  Status Flush() const;
  Status Truncate(uint64_t bytes) const;

  // Returns whether this process has mapped the file.
  bool IsMapped() const;
  // Returns whether the file system can insert blocks. Changes nothing.
  bool CanInsert(uint64_t block_bytes) const;
  // Inserts `bytes` zeros at `offset`, which lies before the end of the file;
  // later data moves up (fallocate(2), FALLOC_FL_INSERT_RANGE). Requires: both
  // are multiples of the file system's block size.
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
