// The memory that one load fills.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/fresh_memory.h"
#include "haulway/buffer.h"
#include "haulway/load.h"
#include "haulway/status.h"
#include "load/load_progress.h"
#include "load/memory_pool.h"

namespace haulway {

// Returns memory as the options say. Fails with kInvalidArgument if the caller
// allocated less than was asked for, or memory that is not writable.
Result<Buffer> AllocateFor(const LoadOptions& options, uint64_t bytes);

// A LoadMemory is one run of bytes: the caller's, new ones from the system, or
// those of an earlier load that a MemoryPool has kept.
//
// Threads: any number at once, in parts that do not overlap.
class LoadMemory {
 public:
  LoadMemory() = default;  // Of no bytes.

  // `is_filled`: whether every byte will be written. Only then memory of an
  // earlier load is taken, since that is not zeroed. Fails as AllocateFor()
  // does, and with kLimit if there is no memory. Requires: `progress` outlives
  // the memory.
  static Result<LoadMemory> Allocate(const LoadOptions& options, uint64_t bytes,
                                     bool is_filled, LoadProgress* progress);

  std::span<std::byte> At(uint64_t offset, uint64_t length) const {
    if (length == 0) return {};
    return memory_.mutable_bytes().subspan(offset, length);
  }
  // The same, with its pages made present for what will be written there.
  std::span<std::byte> Present(uint64_t offset, uint64_t length) {
    const auto part = At(offset, length);
    BringIn(part);
    return part;
  }
  // Makes the pages of a part present.
  void BringIn(std::span<const std::byte> part) {
    const StageClock clock;
    fresh_.BringIn(part);
    progress_->AddTime(Stage::kAllocate, clock);
  }

  // Returns a part to hand out. Its pages go back when its last copy is
  // destroyed, unless the caller allocated them. Requires: no other Buffer is
  // used to reach those bytes afterwards.
  Buffer Slice(uint64_t offset, uint64_t length) const;

  // What LoadStats says of the pages.
  std::string Describe() const;

 private:
  // Empty if the caller allocates, or the memory is an earlier load's.
  FreshMemory fresh_;
  std::shared_ptr<PooledMemory> pooled_;  // Null without a pool.
  bool is_callers_ = false;
  Buffer memory_;
  LoadProgress* progress_ = nullptr;
};

}  // namespace haulway
