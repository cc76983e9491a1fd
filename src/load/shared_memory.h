// Fills a memory file, and maps a sealed one.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/posix.h"
#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

// A SealedMemory is a read-only mapping of a memory file that no process can
// change.
class SealedMemory {
 public:
  // Fails with kCorrupt if the file is not sealed.
  static Result<std::shared_ptr<const SealedMemory>> Map(UniqueFd fd);
  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;
  ~SealedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SealedMemory(UniqueFd fd, std::span<std::byte> bytes)
      : fd_(std::move(fd)), bytes_(bytes) {}

  const UniqueFd fd_;  // Other processes find the file by this descriptor.
  const std::span<std::byte> bytes_;
};

// A MemoryFileFiller grows a memory file and seals it.
//
// Threads: Allocate() may be called from several at once.
class MemoryFileFiller {
 public:
  // Creates a file that starts with `header_bytes` zeros.
  static Result<std::shared_ptr<MemoryFileFiller>> Create(
      const std::string& label, uint64_t header_bytes);

  // Extends the file by at least `bytes` and maps the new part for writing.
  // `threads` threads populate its pages. Child processes do not inherit the
  // mapping. Fails with kLimit if the system has too little shared memory, and
  // with kCancelled once `*cancel` is true.
  Result<Buffer> Allocate(uint64_t bytes, int threads,
                          const std::atomic<bool>* cancel = nullptr);

  // Returns the file offset of memory that Allocate() returned, or nullopt for
  // other memory.
  std::optional<uint64_t> OffsetOf(const Buffer& bytes) const;

  // Appends bytes and returns their offset.
  Result<uint64_t> Append(std::span<const std::byte> bytes);
  Result<uint64_t> AppendZeros(uint64_t bytes);
  Status WriteHeader(std::span<const std::byte> bytes);

  // Seals the file. Requires: no Buffer from Allocate() still exists.
  Result<UniqueFd> Finish() &&;

 private:
  struct Region {
    std::span<std::byte> bytes;
    uint64_t offset;
    std::shared_ptr<const void> owner;
  };

  explicit MemoryFileFiller(UniqueFd fd, uint64_t size)
      : fd_(std::move(fd)), size_(size) {}
  // Extends the file by `bytes` and returns the offset of the new part, a
  // multiple of `alignment`.
  Result<uint64_t> Grow(uint64_t bytes, uint64_t alignment);

  UniqueFd fd_;
  mutable std::mutex mutex_;
  uint64_t size_ HAULWAY_GUARDED_BY(mutex_);
  std::vector<Region> regions_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway
