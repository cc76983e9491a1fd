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

// Allocates memory with `options.allocate` or, if unset, from the system. Fails
// with kInvalidArgument if the caller's function returns too little memory or
// memory that is not writable.
Result<Buffer> AllocateFor(const LoadOptions& options, uint64_t bytes);

// A LoadMemory is one allocation: the caller's, new memory from the system, or
// memory of an earlier load that a MemoryPool has kept.
//
// Threads: several at once, on parts that do not overlap.
class LoadMemory {
 public:
  LoadMemory() = default;  // No bytes.

  // `is_filled`: whether every byte will be written. Memory of an earlier load
  // is used only then, because it is not zeroed. Fails as AllocateFor() does,
  // and with kLimit if there is no memory. Requires: `progress` outlives the
  // memory.
  static Result<LoadMemory> Allocate(const LoadOptions& options, uint64_t bytes,
                                     bool is_filled, LoadProgress* progress);

  std::span<std::byte> At(uint64_t offset, uint64_t length) const {
    if (length == 0) return {};
    return memory_.mutable_bytes().subspan(offset, length);
  }
  // Returns the same bytes as At(), after populating their pages.
  std::span<std::byte> Present(uint64_t offset, uint64_t length) {
    const auto part = At(offset, length);
    BringIn(part);
    return part;
  }
  // Populates the pages of a part, which may be empty.
  void BringIn(std::span<const std::byte> part) {
    if (part.empty()) return;
    const StageClock clock;
    fresh_.BringIn(part);
    progress_->AddTime(Stage::kAllocate, clock);
  }

  // Returns a part to hand out. Its pages are freed when its last copy is
  // destroyed, unless the caller allocated them. Requires: no other Buffer is
  // used to access those bytes afterwards.
  Buffer Slice(uint64_t offset, uint64_t length) const;

  // Describes the pages for LoadStats::pages.
  std::string Describe() const;

 private:
  // Empty if the caller allocated the memory or an earlier load did.
  FreshMemory fresh_;
  std::shared_ptr<PooledMemory> pooled_;  // Null without a pool.
  bool is_callers_ = false;
  Buffer memory_;
  LoadProgress* progress_ = nullptr;
};

}  // namespace haulway
