// The layout of a channel's memory, described in docs/arena.md.

#pragma once

#include <fmt/format.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "arena/arena_layout.h"
#include "arena/futex.h"
#include "arena/shm_segment.h"
#include "haulway/status.h"
#include "haulway/worker.h"

namespace haulway {

namespace arena {

inline constexpr char kChannelLabel[] = "haulway-channel";
inline constexpr uint64_t kChannelMagic = 0x314e414843415748;  // "HWACHAN1"
inline constexpr uint32_t kChannelVersion = 1;
// Longest time until a sleeper notices that its peer has ended.
inline constexpr uint64_t kLivenessNs = 20'000'000;

struct ChannelFacts {
  uint64_t magic;
  uint32_t version;
  uint32_t max_items;
  uint64_t total_bytes;
  uint64_t ring_bytes;
  uint64_t max_message_bytes;
};

struct ChannelHeader {
  ChannelFacts facts;
  // Written by the parent.
  alignas(64) Word wanted;
  Word aborted;
  Word starving;             // Whether the parent waits for a message.
  Word receiver;             // Process id of the receiver.
  alignas(64) Counter tail;  // Total bytes taken out.
  Counter items_taken;
  // Written by the worker.
  alignas(64) Counter head;  // Total bytes put in.
  Counter items_sent;
  // The worker sleeps on the first, the parent on the second.
  alignas(64) Bell to_worker;
  alignas(64) Bell to_parent;
};
static_assert(sizeof(ChannelHeader) <= kHeaderBytes);

// Precedes every message in the ring.
struct MessageHeader {
  uint64_t bytes;
  uint32_t epoch;
  uint16_t kind;
  uint16_t mark;
};
static_assert(sizeof(MessageHeader) == 16);
inline constexpr uint16_t kMessageMark = 0x5748;

}  // namespace arena

class Channel::State {
 public:
  State(const arena::ChannelFacts& checked,
        std::shared_ptr<arena::ShmSegment> mapped)
      : facts(checked),
        segment(std::move(mapped)),
        header(*reinterpret_cast<arena::ChannelHeader*>(segment->data())),
        ring(segment->data() + arena::kHeaderBytes) {}

  // Returns the number of bytes in the ring, given the total bytes put in
  // (`head`) and taken out (`tail`). Fails with kCorrupt if the count that
  // comes from the peer is impossible.
  Result<uint64_t> BytesBetween(uint64_t tail, uint64_t head) const {
    const uint64_t waiting = head - tail;
    if (waiting > facts.ring_bytes) {
      return Status(Code::kCorrupt, fmt::format("{} bytes wait in a ring of {}",
                                                waiting, facts.ring_bytes))
          .In("channel");
    }
    return waiting;
  }

  const arena::ChannelFacts facts;  // A private, checked copy.
  const std::shared_ptr<arena::ShmSegment> segment;
  arena::ChannelHeader& header;
  std::byte* const ring;
};

}  // namespace haulway
