// Filling a memory file and mapping a sealed one.

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

// A SealedMemory is a memory file that nobody can change, mapped to be read.
class SealedMemory {
 public:
  // Fails with kCorrupt if it is not sealed.
  static Result<std::shared_ptr<const SealedMemory>> Map(UniqueFd fd);
  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;
  ~SealedMemory();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  SealedMemory(UniqueFd fd, std::span<std::byte> bytes)
      : fd_(std::move(fd)), bytes_(bytes) {}

  const UniqueFd fd_;  // By which other processes find it.
  const std::span<std::byte> bytes_;
};

// A MemoryFileFiller makes a memory file grow, and seals it.
//
// Threads: Allocate() may be called from several at once.
class MemoryFileFiller {
 public:
  // The file starts with `header_bytes` zeros.
  static Result<std::shared_ptr<MemoryFileFiller>> Create(
      const std::string& label, uint64_t header_bytes);

  // Makes the file longer by `bytes` or more, and maps that for writing, its
  // pages taken by `threads` threads. Children of this process do not get it.
  // Fails with kLimit if the system has no such memory, and kCancelled once
  // `*cancel` is true.
  Result<Buffer> Allocate(uint64_t bytes, int threads,
                          const std::atomic<bool>* cancel = nullptr);

  // Where in the file memory lies that Allocate() gave; nullopt if it did not.
  std::optional<uint64_t> OffsetOf(const Buffer& bytes) const;

  // Appends; returns at which offset.
  Result<uint64_t> Append(std::span<const std::byte> bytes);
  Result<uint64_t> AppendZeros(uint64_t bytes);
  Status WriteHeader(std::span<const std::byte> bytes);

  // Seals the file. Requires: no Buffer that Allocate() gave is left.
  Result<UniqueFd> Finish() &&;

 private:
  struct Region {
    std::span<std::byte> bytes;
    uint64_t offset;
    std::shared_ptr<const void> owner;
  };

  explicit MemoryFileFiller(UniqueFd fd, uint64_t size)
      : fd_(std::move(fd)), size_(size) {}
  // The offset at which `bytes` more begin, a multiple of `alignment`.
  Result<uint64_t> Grow(uint64_t bytes, uint64_t alignment);

  UniqueFd fd_;
  mutable std::mutex mutex_;
  uint64_t size_ HAULWAY_GUARDED_BY(mutex_);
  std::vector<Region> regions_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway
