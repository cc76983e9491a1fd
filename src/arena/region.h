// A mapped arena, its parts found and its sizes checked.

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

// Checks facts that another process wrote: kCorrupt.
Status CheckFacts(const ArenaFacts& facts);
// Reads and checks the facts of the arena behind a descriptor.
Result<ArenaFacts> ReadFacts(int fd);
ArenaStats MakeStats(const ArenaFacts& facts, const ArenaHeader& header);

// Threads: any, for every method; all shared words are atomic.
class Region {
 public:
  static Result<std::shared_ptr<Region>> Create(const ArenaOptions& options);
  static Result<std::shared_ptr<Region>> Attach(UniqueFd fd);

  int fd() const { return segment_->fd(); }
  const ArenaFacts& facts() const { return facts_; }
  ArenaHeader& header() const { return *header_; }
  // Requires, for these: slot < facts().slot_count.
  CommittedUnit& committed(uint32_t slot) const { return committed_[slot]; }
  // Requires: consumer < facts().consumers.
  ReleasedUnit& released(uint32_t slot, uint32_t consumer) const {
    return released_[uint64_t{slot} * facts_.consumers + consumer];
  }
  OrderEntry& order(uint64_t sequence) const {
    return order_[sequence % facts_.slot_count];
  }
  std::byte* payload() const { return payload_; }
  // How far a range may reach: a ring's may run on into its mirror.
  bool Holds(uint64_t offset, uint64_t bytes) const;
  // Whether a range can only be in an overflow: see overflow.h.
  bool IsBeyond(uint64_t offset) const;
  // Maps the pages that hold a range beyond the arena, or finds them mapped.
  // kCorrupt if the file has no such bytes.
  Result<std::shared_ptr<MappedRange>> MapBeyond(uint64_t offset,
                                                 uint64_t bytes) const;

  // Counts one release of a unit by a consumer and wakes the producer if it
  // waits. No effect on a later use of the slot. Takes no lock.
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
