// Memory of loads that is kept for the next load: the engine's side of
// MemoryPool.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "haulway/buffer.h"
#include "haulway/load.h"

namespace haulway {

// Memory that a pool follows: when the last Buffer of it is destroyed, the pool
// may keep it.
class PooledMemory {
 public:
  // Below this, new memory costs little.
  static constexpr uint64_t kSmallest = 8 * kMiB;

  virtual ~PooledMemory() = default;

  // The whole, which was not zeroed if it comes from Take().
  virtual Buffer buffer() = 0;
  // A part. When the last copy of it is destroyed, its pages are kept for as
  // long as the pool keeps memory, and then given back, even while other parts
  // live on. Requires: no other Buffer is used to reach those bytes afterwards.
  virtual Buffer Slice(uint64_t offset, uint64_t length) = 0;

  // Memory that `pool` has kept, at least `bytes` long; null if there is none.
  static std::shared_ptr<PooledMemory> Take(const MemoryPool& pool,
                                            uint64_t bytes);
  // Lets `pool` follow memory that AllocateBuffer() or FreshMemory made.
  static std::shared_ptr<PooledMemory> Follow(const MemoryPool& pool,
                                              Buffer memory);
};

}  // namespace haulway
