// A fixed set of memory slots that are reused when their Buffers are released.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "haulway/buffer.h"
#include "haulway/load.h"
#include "haulway/status.h"
#include "load/load_progress.h"

namespace haulway {

// Threads: any number at once.
class PieceRing {
 public:
  // Allocates `slots` page-aligned slots of `slot_bytes` each, in one
  // allocation made as `options` say. Requires: `slots` and `slot_bytes` above
  // 0.
  static Result<PieceRing> Make(uint64_t slot_bytes, uint64_t slots,
                                const LoadOptions& options);

  // Returns a free slot. The slot is free again when the last copy of the
  // Buffer is destroyed; the Buffer may outlive the ring. Waits until a slot is
  // free. Fails with kCancelled if the load is cancelled meanwhile.
  Result<Buffer> Take(const LoadProgress& progress) const;

  uint64_t slot_bytes() const { return slot_bytes_; }

 private:
  struct State;
  PieceRing(std::shared_ptr<State> state, uint64_t slot_bytes)
      : state_(std::move(state)), slot_bytes_(slot_bytes) {}

  std::shared_ptr<State> state_;
  uint64_t slot_bytes_;
};

}  // namespace haulway
