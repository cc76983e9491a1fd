// A mapped arena, with its parts located and its sizes checked.

#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>

#include "arena/arena_layout.h"
#include "arena/mapped_range.h"
#include "arena/shm_segment.h"
#include "haulway/arena.h"
#include "haulway/status.h"

namespace haulway::arena {

// Checks facts that another process wrote. Fails with kCorrupt.
Status CheckFacts(const ArenaFacts& facts);
// Reads and checks the facts of the arena behind a descriptor.
Result<ArenaFacts> ReadFacts(int fd);
ArenaStats MakeStats(const ArenaFacts& facts, const ArenaHeader& header);

// Threads: any number at once for every method; all shared words are atomic.
class Region {
 public:
  static Result<std::shared_ptr<Region>> Create(const ArenaOptions& options);
  static Result<std::shared_ptr<Region>> Attach(UniqueFd fd);

  int fd() const { return segment_->fd(); }
  const ArenaFacts& facts() const { return facts_; }
  ArenaHeader& header() const { return *header_; }
  // Requires for the following: slot < facts().slot_count.
  CommittedUnit& committed(uint32_t slot) const { return committed_[slot]; }
  // Requires: consumer < facts().consumers.
  ReleasedUnit& released(uint32_t slot, uint32_t consumer) const {
    return released_[uint64_t{slot} * facts_.consumers + consumer];
  }
  OrderEntry& order(uint64_t sequence) const {
    return order_[sequence % facts_.slot_count];
  }
  std::byte* payload() const { return payload_; }
  // Returns whether the range lies in the arena. In a ring it may continue in
  // the mirror.
  bool Holds(uint64_t offset, uint64_t bytes) const;
  // Returns whether the range can only be in an overflow: see overflow.h.
  bool IsBeyond(uint64_t offset) const;
  // Returns a mapping of the pages of a range beyond the arena, from the cache
  // if possible. Fails with kCorrupt if the file is too short.
  Result<std::shared_ptr<MappedRange>> MapBeyond(uint64_t offset,
                                                 uint64_t bytes) const;

  // Counts one release of a unit by a consumer, and wakes the producer if it
  // waits. Has no effect after the slot was reused. Takes no lock.
  void Release(UnitRef unit, uint32_t consumer, uint64_t bytes) const;

 private:
  Region(const ArenaFacts& facts, std::shared_ptr<ShmSegment> segment);

  ArenaFacts facts_;
  std::shared_ptr<ShmSegment> segment_;
  ArenaHeader* header_;
  CommittedUnit* committed_;
  ReleasedUnit* released_;
  OrderEntry* order_;
  std::byte* payload_;
  mutable std::mutex mapped_mutex_;
  mutable std::deque<std::shared_ptr<MappedRange>> mapped_;  // Newest last.
};

}  // namespace haulway::arena
