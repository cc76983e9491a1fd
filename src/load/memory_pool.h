// Memory that is kept for the next load: the internal interface of MemoryPool.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "haulway/buffer.h"
#include "haulway/load.h"

namespace haulway {

// A PooledMemory is memory that a pool may keep after its last Buffer is
// destroyed.
class PooledMemory {
 public:
  // Smaller allocations are not pooled: allocating them is cheap.
  static constexpr uint64_t kSmallest = 8 * kMiB;

  virtual ~PooledMemory() = default;

  // Returns all of the memory. Memory from Take() is not zeroed.
  virtual Buffer buffer() = 0;
  // Returns a part. When its last copy is destroyed, its pages are kept as long
  // as the pool keeps memory and are then freed, even if other parts are still
  // in use. Requires: no other Buffer is used to access those bytes afterwards.
  virtual Buffer Slice(uint64_t offset, uint64_t length) = 0;

  // Returns memory of at least `bytes` that `pool` kept, or null.
  static std::shared_ptr<PooledMemory> Take(const MemoryPool& pool,
                                            uint64_t bytes);
  // Makes `pool` keep `memory` after use. Requires: AllocateBuffer() or
  // FreshMemory made `memory`.
  static std::shared_ptr<PooledMemory> Follow(const MemoryPool& pool,
                                              Buffer memory);
};

}  // namespace haulway
