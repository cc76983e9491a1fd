// What lies where in the memory file of a publication. docs/publish.md
// describes it.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "arena/futex.h"

namespace haulway::publish {

inline constexpr char kLabel[] = "haulway-publication:";  // Then the name.
inline constexpr uint64_t kMagic = 0x314255504c554148;    // "HAULPUB1"
inline constexpr uint32_t kLayoutVersion = 1;
inline constexpr size_t kLongestName = 100;
inline constexpr uint32_t kSlots = 1000;
// A slot's number is in the low bits of Header::newest.
inline constexpr uint32_t kSlotBits = 10;
static_assert(kSlots <= 1U << kSlotBits);

// Bytes of the file that are locked, by open file: they stand for what they
// lock and lie anywhere. Slot k is byte k: readers share it, who writes to its
// memory has it alone.
inline constexpr int64_t kPublisherLock = 1 << 20;
inline constexpr int64_t kSubscriberLock = kPublisherLock + 1;

// Memory of versions begins at a multiple of a huge page.
inline constexpr uint64_t kRegionAlignment = uint64_t{2} << 20;
// Before what a version's memory was reserved for there is room for its
// envelope, of which only the pages that are used take memory.
inline constexpr uint64_t kFrontBytes = uint64_t{64} << 20;
inline constexpr uint64_t kPartAlignment = 64;

using Counter = std::atomic<uint64_t>;
using arena::Word;
static_assert(Counter::is_always_lock_free && sizeof(Counter) == 8);

struct Header {
  // Written once.
  uint64_t magic;
  uint32_t layout_version;
  uint32_t slot_count;
  char name[112];
  // Written by the publisher.
  alignas(64) Counter newest;  // version << kSlotBits | slot; 0: none yet.
  Counter keep;
  Word publisher;  // Process id.
  Word rings;      // Counts publications; waited on.
};
static_assert(offsetof(Header, newest) == 128);
static_assert(offsetof(Header, rings) == 148);

// One version. Only a process that holds the slot's exclusive lock changes it.
struct alignas(64) Slot {
  Counter version;  // 0: none, or not whole.
  Counter message_offset;
  Counter message_bytes;
  Counter region_offset;  // The memory, room for the envelope included.
  Counter region_bytes;   // 0: none.
};
static_assert(sizeof(Slot) == 64);

inline constexpr uint64_t kSlotsOffset = 4096;
inline constexpr uint64_t kHeaderBytes =
    (kSlotsOffset + kSlots * sizeof(Slot) + 4095) / 4096 * 4096;

constexpr uint64_t VersionOf(uint64_t newest) { return newest >> kSlotBits; }
constexpr uint32_t SlotOf(uint64_t newest) {
  return newest & ((1U << kSlotBits) - 1);
}

}  // namespace haulway::publish
