// The memory that a publisher writes versions to.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "arena/mapped_range.h"
#include "haulway/buffer.h"
#include "haulway/status.h"
#include "publish/publication_file.h"

namespace haulway::publish {

// A Region is a slot's memory, mapped for writing: room for an envelope,
// followed by the bytes of parts.
struct Region {
  std::shared_ptr<arena::MappedRange> map;
  uint64_t front = 0;     // Offset of the parts in `map`.
  uint64_t reserved = 0;  // Pages from this offset on are allocated.

  uint64_t capacity() const { return map->size() - front; }
  std::span<std::byte> parts() const {
    return {map->data() + front, capacity()};
  }
};

// VersionMemory finds a slot for the next version, and memory of a suitable
// size: if possible that of a version that is neither kept nor held.
//
// Requires: the publisher's lock is held. Threads: one at a time.
class VersionMemory {
 public:
  explicit VersionMemory(std::shared_ptr<PublicationFile> file)
      : file_(std::move(file)) {}

  // Cleans up versions that a killed publisher left incomplete.
  void Recover();
  // Returns a slot without a version, with an exclusive lock and room for the
  // parts and an envelope. Fails with kLimit and the sizes if there is no
  // memory, and with kLimit if there is no slot.
  Result<uint32_t> Take(uint64_t envelope_bytes, uint64_t part_bytes,
                        uint64_t keep);
  // Unlocks the slot. Unless it has a version now, its memory is free for the
  // next one.
  void Return(uint32_t slot);
  // Returns the memory for the parts of a slot from Take(). From then on the
  // Buffer holds the slot.
  Result<Buffer> Lend(uint32_t slot);
  // Allocates the pages for the last `bytes` of the room for the envelope.
  Status ReserveFront(uint32_t slot, uint64_t bytes);
  const Region& region(uint32_t slot) const { return regions_[slot]; }

 private:
  // Returns whether this process has mapped the slot's memory and its size
  // fits.
  bool Fits(uint32_t slot, uint64_t envelope_bytes, uint64_t part_bytes) const;
  Status Allocate(uint32_t slot, uint64_t envelope_bytes, uint64_t part_bytes);

  std::shared_ptr<PublicationFile> file_;
  std::array<Region, kSlots> regions_;
};

}  // namespace haulway::publish
