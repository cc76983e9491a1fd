// Keeps the frames of a version until its shards can be written.
//
// The names of shards state how many there are, and a shard's header states the
// size of every frame in it, so all frames are made before the first shard.

#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "base/posix.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

// A FrameSpool holds frames in memory, up to a limit, and then in an unnamed
// file in the folder for temporary files.
//
// Threads: Finish() and Read() may be called by many at once.
class FrameSpool {
 public:
  static constexpr uint64_t kMostMemory = 64 * kMiB;
  explicit FrameSpool(uint64_t most_memory = kMostMemory)
      : most_memory_(most_memory) {}

  // A frame in the spool.
  class Frame {
   public:
    uint64_t size() const { return size_; }

   private:
    friend class FrameSpool;
    struct Piece {
      std::vector<std::byte> memory;  // Empty if it is in the file.
      uint64_t offset = 0;
      uint64_t length = 0;
    };
    std::vector<Piece> pieces_;
    std::vector<std::byte> growing_;
    uint64_t size_ = 0;
  };

  // Adds bytes to a frame. Fails as the system does; then the frame has the
  // bytes before.
  Status Append(Frame* frame, std::span<const std::byte> bytes);
  // Call after the last Append().
  Status Finish(Frame* frame);
  Status Read(const Frame& frame, uint64_t offset,
              std::span<std::byte> out) const;
  // Returns all bytes of a frame.
  Result<std::vector<std::byte>> ReadAll(const Frame& frame) const;

 private:
  const uint64_t most_memory_;
  std::mutex mutex_;
  uint64_t memory_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t end_ HAULWAY_GUARDED_BY(mutex_) = 0;  // Where the file ends.
  UniqueFd file_;
};

}  // namespace haulway
