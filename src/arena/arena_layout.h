// The layout of an arena's memory, described in docs/arena.md.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "arena/futex.h"
#include "haulway/arena.h"

namespace haulway::arena {

inline constexpr char kArenaLabel[] = "haulway-arena";
inline constexpr uint64_t kArenaMagic = 0x31414e4552415748;  // "HWARENA1"
inline constexpr uint32_t kArenaVersion = 3;
inline constexpr uint64_t kHeaderBytes = 4096;
inline constexpr uint32_t kMostUnits = 1 << 20;
inline constexpr uint32_t kMostConsumers = 64;
inline constexpr uint64_t kAlignment = 64;  // A cache line.

using Counter = std::atomic<uint64_t>;
static_assert(Counter::is_always_lock_free && sizeof(Counter) == 8);

// Written once by the creator. A process that attaches copies and checks the
// facts, and then uses its copy.
struct ArenaFacts {
  uint64_t magic;
  uint32_t version;
  uint16_t kind;
  uint16_t consumers;
  uint64_t total_bytes;  // Segment size without a ring's mirror.
  uint64_t payload_offset;
  uint64_t payload_bytes;  // Rounded up to pages.
  uint64_t capacity;       // Bytes of the payload that units may use.
  uint64_t unit_bytes;
  uint32_t slot_count;
  uint32_t creator;  // Process id.
};
static_assert(sizeof(ArenaFacts) == 64);

struct ArenaHeader {
  ArenaFacts facts;
  // Consumers ring after a release if the producer is waiting.
  alignas(64) Bell released;
  alignas(64) Word shutdown;
  Counter overflow_limit;  // Written once by the creator.
  // Written by the producer.
  alignas(64) Counter committed_units;
  Counter committed_bytes;
  Counter used;
  Counter high_water;
  Counter waits;
  Counter fallbacks;
  Word producer;
  Counter overflows;
  // Written by consumers.
  alignas(64) Counter releases;
  Counter released_bytes;
};
static_assert(sizeof(ArenaHeader) <= kHeaderBytes);
static_assert(offsetof(ArenaHeader, released) == 64);
static_assert(offsetof(ArenaHeader, shutdown) == 128);
static_assert(offsetof(ArenaHeader, overflow_limit) == 136);
static_assert(offsetof(ArenaHeader, committed_units) == 192);
static_assert(offsetof(ArenaHeader, overflows) == 248);
static_assert(offsetof(ArenaHeader, releases) == 256);

// After the header: one for each slot, written by the producer,
struct CommittedUnit {
  Counter generation;  // Generation of the committed unit, or 0.
  Counter bytes;
};
// then, for each slot and each consumer of the slot, a word that this consumer
// writes: generation << 32 | number of releases,
using ReleasedUnit = Counter;
// then a circular list of the slots of units, in order of commit.
using OrderEntry = Word;

constexpr uint64_t SlotBytes(uint32_t consumers) {
  return sizeof(CommittedUnit) + sizeof(ReleasedUnit) * consumers +
         sizeof(OrderEntry);
}

}  // namespace haulway::arena
