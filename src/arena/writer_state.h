// The producer's record of its units. The record is private, so no consumer can
// damage it. The shared words only tell how often a unit was released.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "arena/copy_crew.h"
#include "arena/futex.h"
#include "arena/overflow.h"
#include "arena/placement.h"
#include "arena/region.h"
#include "haulway/arena.h"

namespace haulway {

class ArenaWriter::State {
 public:
  explicit State(std::shared_ptr<arena::Region> region);

  struct Piece {
    uint64_t offset;
    uint64_t bytes;
  };
  struct Slot {
    uint32_t generation = 0;
    bool published = false;
    uint64_t bytes = 0;
    std::atomic<bool> lent{false};
    std::vector<Piece> pieces;
    std::shared_ptr<arena::MappedRange> apart;  // The unit's own memory.
  };

  // The following methods require `mutex`.

  // Calls `attempt` at once and after each release, until it returns true.
  template <class Attempt>
  Status WaitUntil(uint64_t wait_ns, const Attempt& attempt);
  // Opens a slot, or returns false if all are taken.
  bool TakeSlot(uint32_t* slot);
  // Does the same without taking a pool's segment.
  bool TakeEmptySlot(uint32_t* slot);
  // Adds bytes to a slot's unit. Returns false if there is no room now.
  bool TakeBytes(uint32_t slot, uint64_t bytes, uint64_t* offset);
  void FreeSlot(uint32_t slot);
  // Frees the units that consumers have released since the last call.
  void Reclaim();
  // Makes the unit visible. Each consumer in `audience` then owes one release.
  void Publish(uint32_t slot, Audience audience);
  bool IsReleased(uint32_t slot) const;
  void CountUsed(int64_t change);
  bool IsPool() const { return unit_limit != 0; }

  std::mutex mutex;
  std::shared_ptr<arena::Region> region;
  std::unique_ptr<arena::Placement> placement;
  arena::Overflow overflow;
  std::unique_ptr<Slot[]> slots;
  // Releases owed, for each slot and each consumer of the slot.
  std::vector<uint32_t> sent;
  Audience listening = kEveryone;  // Consumers that were not forgotten.
  std::vector<uint32_t> free_slots;
  std::vector<uint32_t> out;  // Committed or lent, not yet free.
  uint64_t unit_limit = 0;    // Used for pools only.
  uint64_t used = 0;
  uint64_t releases_seen = 0;
  std::atomic<bool> loan_dropped{false};
  arena::Spinner spinner;
  arena::CopyCrew crew;  // Does not need `mutex`.

  bool open = false;  // Whether a unit is open.
  uint32_t open_slot = 0;
  uint64_t open_bytes = 0;
};

}  // namespace haulway
