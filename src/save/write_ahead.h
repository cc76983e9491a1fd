// A buffer for bytes that are produced before they can be written.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "haulway/status.h"

namespace haulway {

// A WriteAhead holds pieces of a file that wait to be written, in memory that
// is reused. Must not be used by two threads at once.
class WriteAhead {
 public:
  // Reserves room for at least `bytes`. Requires: it is empty.
  void Reserve(uint64_t bytes) {
    if (bytes <= capacity_) return;
    bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    capacity_ = bytes;
  }
  uint64_t room() const { return capacity_ - used_; }
  // Returns memory, with unspecified content, for bytes at file offset
  // `offset`. Requires: there is room.
  std::span<std::byte> Take(uint64_t offset, uint64_t length) {
    const std::span<std::byte> out(bytes_.get() + used_, length);
    used_ += length;
    if (!runs_.empty() && runs_.back().offset + runs_.back().length == offset) {
      runs_.back().length += length;
    } else {
      runs_.push_back({offset, out.data(), length});
    }
    return out;
  }
  // Calls write(offset, bytes) for all held pieces, and clears them.
  template <class Write>
  Status Drain(const Write& write) {
    for (const Run& run : runs_) {
      HAULWAY_TRY(write(run.offset, std::span(run.bytes, run.length)));
    }
    runs_.clear();
    used_ = 0;
    return Status();
  }

 private:
  struct Run {
    uint64_t offset;
    const std::byte* bytes;
    uint64_t length;
  };

  std::unique_ptr<std::byte[]> bytes_;
  uint64_t capacity_ = 0;
  uint64_t used_ = 0;
  std::vector<Run> runs_;
};

}  // namespace haulway
