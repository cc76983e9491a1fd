// Reads the chunks that extensions of torch's writer transformed.

#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <utility>

#include "dcp/dcp_item.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::dcp {

// A ChunkCursor reads the payload of one chunk, in the order in which the
// archive stores it. When the last byte of the payload is read, the rest of the
// archive is read too, and the CRC-32 of the payload is compared: zstd's frames
// have no checksum. Threads: one at a time, who holds `mutex`.
class ChunkCursor {
 public:
  ChunkCursor(std::shared_ptr<const ByteSource> file, const StoredItem& item,
              uint64_t nbytes)
      : nbytes_(nbytes), cursor_(std::move(file), item, MostOfTensor(nbytes)) {}

  // See ItemCursor.
  Result<std::span<const std::byte>> Head(size_t bytes) {
    return cursor_.Head(bytes);
  }

  // Reads ranges of the payload, sorted by offset. `payload` is the offset of
  // the payload in the archive. Fails with kMismatch if the CRC-32 differs,
  // else as ItemCursor does.
  Status Read(uint64_t payload, std::span<const ReadRequest> ranges);

  uint64_t kept_bytes() const { return cursor_.kept_bytes(); }
  // Returns whether the whole archive was read and checked.
  bool is_checked() const { return is_checked_; }

  std::mutex mutex;

 private:
  Status Check(uint64_t payload);

  const uint64_t nbytes_;
  ItemCursor cursor_;
  bool is_watched_ = false;
  bool is_checked_ = false;
};

// ChunkCursors keeps the cursors of chunks that are read in pieces. Threads:
// any number at once.
class ChunkCursors {
 public:
  // Returns the cursor of a chunk, which `make` makes if there is none.
  template <class Make>
  std::shared_ptr<ChunkCursor> Take(uint32_t chunk, const Make& make) {
    const std::lock_guard lock(mutex_);
    auto [found, is_new] = held_.try_emplace(chunk);
    if (is_new) found->second.cursor = make();
    return found->second.cursor;
  }

  // Notes that a read of the cursor's chunk ended, with `kept` bytes of it
  // kept. `is_done`: no more reads of it are expected. Forgets the cursors that
  // were not used for the longest time, if there are too many.
  void Return(uint32_t chunk, uint64_t kept, bool is_done);

 private:
  struct Held {
    std::shared_ptr<ChunkCursor> cursor;
    uint64_t kept = 0;
    uint64_t used = 0;  // Number of the last use.
  };

  std::mutex mutex_;
  std::map<uint32_t, Held> held_;
  uint64_t uses_ = 0;
  uint64_t kept_ = 0;
};

}  // namespace haulway::dcp
