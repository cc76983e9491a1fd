// Direct I/O (O_DIRECT): writes around the page cache. Only whole blocks can be
// written, so partial blocks go through the page cache, at the end.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/kept_memory.h"
#include "base/posix.h"
#include "haulway/buffer.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

// A DirectWriter writes to a file that is open twice.
//
// Threads: WriteAt() may be called from many threads at once.
class DirectWriter {
 public:
  // Size of a write, large enough to keep a disk busy. Writes end at multiples
  // of this in the file.
  static constexpr uint64_t kRequestBytes = 4 * kMiB;

  // `buffered_fd` is not owned.
  DirectWriter(UniqueFd direct, int buffered_fd)
      : direct_(std::move(direct)), buffered_fd_(buffered_fd) {}

  // Writes `parts`, one after another, from `offset`. Partial blocks may be
  // kept until Finish().
  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts);
  // Writes the partial blocks. Requires: no WriteAt() is running.
  Status Finish();
  // Returns the number of bytes that were written around the page cache.
  uint64_t direct_bytes() const { return direct_bytes_.load(); }

 private:
  // Bytes that fill no block. They are kept until many can be written at once,
  // because direct writes wait while one goes through the page cache.
  struct Edge {
    uint64_t offset;
    std::vector<std::byte> bytes;
  };

  Status WriteBlocks(uint64_t offset,
                     std::span<const std::span<const std::byte>> parts);
  Status Keep(uint64_t offset,
              std::span<const std::span<const std::byte>> parts);
  Status WriteEdges(std::vector<Edge> edges) const;

  const UniqueFd direct_;
  const int buffered_fd_;
  std::atomic<uint64_t> direct_bytes_{0};
  const KeptMemory memory_{16};
  std::mutex mutex_;
  std::vector<Edge> edges_ HAULWAY_GUARDED_BY(mutex_);
  uint64_t edge_bytes_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace haulway
