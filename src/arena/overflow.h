// Memory for units that do not fit in an arena.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "arena/mapped_range.h"
#include "haulway/status.h"

namespace haulway::arena {

// An Overflow takes memory from the system for one unit at a time: a piece of
// the arena's file beyond the arena. So the memory needs no descriptor of its
// own, and is freed with the arena's last holder.
//
// Pages of a released piece are kept for the next one, which then needs no new
// pages, and are freed if they are not used for a while. Threads: one at a
// time.
class Overflow {
 public:
  // `start`: end of the arena in the file. `limit`: largest number of bytes
  // held at once.
  Overflow(int fd, uint64_t start, uint64_t limit);
  Overflow(const Overflow&) = delete;
  Overflow& operator=(const Overflow&) = delete;
  ~Overflow();

  // Returns at least `bytes`, with undefined content. Fails with kLimit if the
  // limit or the system does not permit it.
  Result<std::shared_ptr<MappedRange>> Take(uint64_t bytes);
  void Give(uint64_t offset);
  // Records that a unit did not need an overflow.
  void PassBy();

 private:
  using Piece = std::shared_ptr<MappedRange>;
  Piece TakeSpare(uint64_t bytes);
  void ReturnOldestSpare();
  // Returns the first gap in the file that is large enough.
  uint64_t Find(uint64_t bytes) const;

  const int fd_;
  const uint64_t start_;
  const uint64_t limit_;
  const pid_t owner_;
  uint64_t end_;                      // Size of the file.
  std::map<uint64_t, Piece> pieces_;  // All pieces, by offset.
  std::deque<uint64_t> spares_;       // Free pieces, oldest first.
  uint64_t held_bytes_ = 0;           // Sum over all pieces.
  uint32_t passed_by_ = 0;
};

}  // namespace haulway::arena
