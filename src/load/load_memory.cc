#include "load/load_memory.h"

#include <fmt/format.h>

#include <utility>

#include "base/host_memory.h"

namespace haulway {

namespace {

// Allocates memory. If that fails, frees the memory that the pool keeps and
// tries again.
Result<FreshMemory> AllocateFresh(uint64_t bytes, const MemoryPool* pool) {
  auto fresh = FreshMemory::Allocate(bytes);
  if (fresh.ok() || pool == nullptr) return fresh;
  pool->Clear();
  return FreshMemory::Allocate(bytes);
}

}  // namespace

Result<Buffer> AllocateFor(const LoadOptions& options, uint64_t bytes) {
  if (!options.allocate) return AllocateBuffer(bytes);
  HAULWAY_ASSIGN(Buffer memory, options.allocate(bytes));
  if (!memory.writable() || memory.size() < bytes) {
    return Status(Code::kInvalidArgument,
                  fmt::format("LoadOptions::allocate: expected {} bytes to "
                              "write, found {}",
                              bytes, memory.writable() ? memory.size() : 0));
  }
  return memory;
}

Result<LoadMemory> LoadMemory::Allocate(const LoadOptions& options,
                                        uint64_t bytes, bool is_filled,
                                        LoadProgress* progress) {
  const StageClock clock;
  LoadMemory made;
  made.progress_ = progress;
  const MemoryPool* const pool = options.pool;
  const bool is_pooled = pool != nullptr && bytes >= PooledMemory::kSmallest;
  if (options.allocate) {
    made.is_callers_ = true;
    HAULWAY_ASSIGN(made.memory_, AllocateFor(options, bytes));
  } else {
    if (is_pooled && is_filled) {
      made.pooled_ = PooledMemory::Take(*pool, bytes);
    }
    if (made.pooled_ == nullptr) {
      HAULWAY_ASSIGN(made.fresh_, AllocateFresh(bytes, pool));
      made.memory_ = made.fresh_.buffer();
      if (is_pooled) {
        made.pooled_ = PooledMemory::Follow(*pool, std::move(made.memory_));
      }
    }
    if (made.pooled_ != nullptr) made.memory_ = made.pooled_->buffer();
  }
  progress->AddTime(Stage::kAllocate, clock);
  return made;
}

Buffer LoadMemory::Slice(uint64_t offset, uint64_t length) const {
  if (is_callers_) return memory_.Slice(offset, length);
  if (pooled_ != nullptr) return pooled_->Slice(offset, length);
  return ReclaimableSlice(memory_, offset, length);
}

std::string LoadMemory::Describe() const {
  return pooled_ != nullptr && fresh_.buffer().size() == 0
             ? "memory of an earlier load"
             : fresh_.Describe();
}

}  // namespace haulway
