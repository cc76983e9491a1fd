#include "arena/placement.h"

#include "arena/arena_layout.h"

namespace haulway::arena {

HeapPlacement::HeapPlacement(uint64_t capacity)
    : free_(capacity / kAlignment * kAlignment) {}

uint64_t HeapPlacement::Footprint(uint64_t bytes) const {
  return bytes == 0 ? kAlignment
                    : (bytes - 1) / kAlignment * kAlignment + kAlignment;
}

std::optional<uint64_t> HeapPlacement::Take(uint64_t bytes) {
  return free_.Take(Footprint(bytes));
}

void HeapPlacement::Give(uint64_t offset, uint64_t bytes) {
  free_.Give(offset, Footprint(bytes));
}

RingPlacement::RingPlacement(uint64_t circle, uint64_t capacity)
    : circle_(circle), capacity_(capacity) {}

std::optional<uint64_t> RingPlacement::Take(uint64_t bytes) {
  if (bytes > capacity_ - (head_ - tail_)) return std::nullopt;
  const uint64_t position = head_;
  pieces_.push_back({position, bytes, false});
  head_ += bytes;
  return position % circle_;
}

void RingPlacement::Give(uint64_t offset, uint64_t bytes) {
  for (Piece& piece : pieces_) {
    if (!piece.given && piece.position % circle_ == offset &&
        piece.bytes == bytes) {
      piece.given = true;
      break;
    }
  }
  while (!pieces_.empty() && pieces_.front().given) {
    tail_ = pieces_.front().position + pieces_.front().bytes;
    pieces_.pop_front();
  }
  // The bytes of an aborted unit were the last ones taken.
  while (!pieces_.empty() && pieces_.back().given) {
    head_ = pieces_.back().position;
    pieces_.pop_back();
  }
}

}  // namespace haulway::arena
