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

// A Region is a slot's memory, mapped for writing: room for an envelope, then
// the bytes of parts.
struct Region {
  std::shared_ptr<arena::MappedRange> map;
  uint64_t front = 0;     // Where the parts begin, in `map`.
  uint64_t reserved = 0;  // From here on the pages are there.

  uint64_t capacity() const { return map->size() - front; }
  std::span<std::byte> parts() const {
    return {map->data() + front, capacity()};
  }
};

// VersionMemory finds a slot for the next version, and memory for it: that of
// a version that is neither kept nor held if there is one of a size that fits.
//
// Requires: the publisher's lock is held. Threads: one at a time.
class VersionMemory {
 public:
  explicit VersionMemory(std::shared_ptr<PublicationFile> file)
      : file_(std::move(file)) {}

  // Takes over what a publisher that was killed has left half done.
  void Recover();
  // A slot, locked alone, of no version, with room for the parts' bytes and an
  // envelope. kLimit, with sizes, where there is no memory or no slot.
  Result<uint32_t> Take(uint64_t envelope_bytes, uint64_t part_bytes,
                        uint64_t keep);
  // Unlocks it; its memory is free for the next version unless it has one now.
  void Return(uint32_t slot);
  // The parts' memory of a slot that was taken; the slot is held by the Buffer
  // from then on.
  Result<Buffer> Lend(uint32_t slot);
  // Takes the pages of the last `bytes` of the room for the envelope.
  Status ReserveFront(uint32_t slot, uint64_t bytes);
  const Region& region(uint32_t slot) const { return regions_[slot]; }

 private:
  // Whether the slot's memory is what this process mapped, and of such a size.
  bool Fits(uint32_t slot, uint64_t envelope_bytes, uint64_t part_bytes) const;
  Status Allocate(uint32_t slot, uint64_t envelope_bytes, uint64_t part_bytes);

  std::shared_ptr<PublicationFile> file_;
  std::array<Region, kSlots> regions_;
};

}  // namespace haulway::publish
