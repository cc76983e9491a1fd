// Memory for what an arena is too small for.

#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>

#include "arena/mapped_range.h"
#include "haulway/status.h"

namespace haulway::arena {

// An Overflow takes memory from the system, for one unit at a time: a piece of
// the arena's file that lies beyond the arena. So it needs no descriptor of
// its own, and goes with the arena's last holder as all of it does.
//
// Pages of a piece that was given back are kept for the next one, which then
// needs no new ones, and go back to the system when none comes for long.
// Threads: one at a time.
class Overflow {
 public:
  // `start`: what the file has before. At most `limit` bytes at once.
  Overflow(int fd, uint64_t start, uint64_t limit);
  Overflow(const Overflow&) = delete;
  Overflow& operator=(const Overflow&) = delete;
  ~Overflow();

  // At least so many bytes; their content is whatever it was. kLimit where the
  // limit or the system does not allow it.
  Result<std::shared_ptr<MappedRange>> Take(uint64_t bytes);
  void Give(uint64_t offset);
  // Something was placed without it.
  void PassBy();

 private:
  using Piece = std::shared_ptr<MappedRange>;
  Piece TakeSpare(uint64_t bytes);
  void ReturnOldestSpare();
  // The first gap of the file that is large enough.
  uint64_t Find(uint64_t bytes) const;

  const int fd_;
  const uint64_t start_;
  const uint64_t limit_;
  const pid_t owner_;
  uint64_t end_;                      // Size of the file.
  std::map<uint64_t, Piece> pieces_;  // All, by offset.
  std::deque<uint64_t> spares_;       // Not taken, oldest first.
  uint64_t held_bytes_ = 0;           // Sum over all pieces.
  uint32_t passed_by_ = 0;
};

}  // namespace haulway::arena
