// Memory for pieces that are handed over, used again as they are let go.

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
  // `slots` pieces of `slot_bytes`, each from the start of a page, in one
  // allocation that `options` make. Requires: both above 0.
  static Result<PieceRing> Make(uint64_t slot_bytes, uint64_t slots,
                                const LoadOptions& options);

  // Memory of slot_bytes that comes back when the last copy of the Buffer is
  // gone, even if that outlives the ring. Waits until there is some;
  // kCancelled if the load is to stop meanwhile.
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
