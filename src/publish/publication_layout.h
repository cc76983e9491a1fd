// The layout of a publication's memory file, described in docs/publish.md.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "arena/futex.h"

namespace haulway::publish {

// Followed by the name.
inline constexpr char kLabel[] = "haulway-publication:";
inline constexpr uint64_t kMagic = 0x314255504c554148;  // "HAULPUB1"
inline constexpr uint32_t kLayoutVersion = 1;
inline constexpr size_t kLongestName = 100;
inline constexpr uint32_t kSlots = 1000;
// The slot number is in the low bits of Header::newest.
inline constexpr uint32_t kSlotBits = 10;
static_assert(kSlots <= 1U << kSlotBits);

// Bytes of the file that open file descriptions lock. The numbers only identify
// what is locked; the content of the bytes is unrelated. Byte k stands for slot
// k: readers take a shared lock, a writer of the slot's memory an exclusive
// one.
inline constexpr int64_t kPublisherLock = 1 << 20;
inline constexpr int64_t kSubscriberLock = kPublisherLock + 1;

// The memory of a version begins at a multiple of a huge page.
inline constexpr uint64_t kRegionAlignment = uint64_t{2} << 20;
// Room for a version's envelope before its reserved memory. Only the pages that
// are used take memory.
inline constexpr uint64_t kFrontBytes = uint64_t{64} << 20;
inline constexpr uint64_t kPartAlignment = 64;

using Counter = std::atomic<uint64_t>;
using arena::Word;
static_assert(Counter::is_always_lock_free && sizeof(Counter) == 8);

struct Header {
  // Written once, the magic last: a process that sees the magic sees the rest.
  Counter magic;
  uint32_t layout_version;
  uint32_t slot_count;
  char name[112];
  // Written by the publisher.
  // version << kSlotBits | slot; 0: no version yet.
  alignas(64) Counter newest;
  Counter keep;
  Word publisher;  // Process id.
  Word rings;      // Counts publications; a futex to wait on.
};
static_assert(offsetof(Header, newest) == 128);
static_assert(offsetof(Header, rings) == 148);

// One version. Changed only by a process that holds the slot's exclusive lock
// or, for memory that Reserve() lent, by the publisher while the loan holds a
// shared lock.
struct alignas(64) Slot {
  Counter version;  // 0: none, or incomplete.
  Counter message_offset;
  Counter message_bytes;
  Counter region_offset;  // Includes the room for the envelope.
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
