#include "arena/free_ranges.h"

#include <cassert>
#include <iterator>

namespace haulway::arena {

FreeRanges::FreeRanges(uint64_t size) {
  if (size > 0) Add(0, size);
}

std::optional<uint64_t> FreeRanges::Take(uint64_t bytes) {
  const auto fit = by_bytes_.lower_bound({bytes, 0});
  if (fit == by_bytes_.end()) return std::nullopt;
  const auto [length, offset] = *fit;
  Remove(by_offset_.find(offset));
  if (length > bytes) Add(offset + bytes, length - bytes);
  return offset;
}

void FreeRanges::Give(uint64_t offset, uint64_t bytes) {
  const auto next = by_offset_.lower_bound(offset);
  assert(next == by_offset_.end() || offset + bytes <= next->first);
  uint64_t start = offset;
  uint64_t end = offset + bytes;
  if (next != by_offset_.begin()) {
    const auto previous = std::prev(next);
    assert(previous->first + previous->second <= offset);
    if (previous->first + previous->second == offset) {
      start = previous->first;
      Remove(previous);
    }
  }
  if (next != by_offset_.end() && next->first == end) {
    end += next->second;
    Remove(next);
  }
  Add(start, end - start);
}

uint64_t FreeRanges::largest() const {
  return by_bytes_.empty() ? 0 : by_bytes_.rbegin()->first;
}

void FreeRanges::Add(uint64_t offset, uint64_t bytes) {
  by_offset_.emplace(offset, bytes);
  by_bytes_.emplace(bytes, offset);
  free_bytes_ += bytes;
}

void FreeRanges::Remove(std::map<uint64_t, uint64_t>::iterator range) {
  by_bytes_.erase({range->second, range->first});
  free_bytes_ -= range->second;
  by_offset_.erase(range);
}

}  // namespace haulway::arena
