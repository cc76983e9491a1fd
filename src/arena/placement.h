// Decides where in an arena the bytes of a unit go.

#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "arena/free_ranges.h"

namespace haulway::arena {

// A Placement knows which bytes are taken. It is private to the producer.
class Placement {
 public:
  virtual ~Placement() = default;
  // Returns the offset for `bytes`, or nullopt if there is no room now.
  virtual std::optional<uint64_t> Take(uint64_t bytes) = 0;
  virtual void Give(uint64_t offset, uint64_t bytes) = 0;
  // Returns how many bytes Take() reserves for `bytes`.
  virtual uint64_t Footprint(uint64_t bytes) const = 0;
};

// Places ranges anywhere, in multiples of a cache line.
class HeapPlacement final : public Placement {
 public:
  explicit HeapPlacement(uint64_t capacity);
  std::optional<uint64_t> Take(uint64_t bytes) override;
  void Give(uint64_t offset, uint64_t bytes) override;
  uint64_t Footprint(uint64_t bytes) const override;

 private:
  FreeRanges free_;
};

// Places ranges one after another in a circle of `circle` bytes, of which
// `capacity` may be taken at once. A range may continue past the end, in the
// mirror.
class RingPlacement final : public Placement {
 public:
  RingPlacement(uint64_t circle, uint64_t capacity);
  std::optional<uint64_t> Take(uint64_t bytes) override;
  void Give(uint64_t offset, uint64_t bytes) override;
  uint64_t Footprint(uint64_t bytes) const override { return bytes; }

 private:
  struct Piece {
    uint64_t position;
    uint64_t bytes;
    bool given;
  };
  uint64_t circle_;
  uint64_t capacity_;
  uint64_t head_ = 0;  // Total bytes taken.
  uint64_t tail_ = 0;
  std::deque<Piece> pieces_;
};

}  // namespace haulway::arena
