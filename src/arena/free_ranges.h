// Manages the free bytes of a region.

#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace haulway::arena {

// FreeRanges hands out ranges of [0, size) and takes them back in any order.
//
// It takes the smallest free range that fits, and of several the one with the
// lowest offset. So memory that was used before, and is in caches and page
// tables, is reused before new memory. The state is in private memory, where no
// peer can damage it.
class FreeRanges {
 public:
  explicit FreeRanges(uint64_t size);

  // Returns the offset of a range of `bytes`, or nullopt if none is long
  // enough. Requires: bytes > 0.
  std::optional<uint64_t> Take(uint64_t bytes);
  // Requires: the range was taken and not given back yet.
  void Give(uint64_t offset, uint64_t bytes);

  uint64_t free_bytes() const { return free_bytes_; }
  uint64_t largest() const;

 private:
  void Add(uint64_t offset, uint64_t bytes);
  void Remove(std::map<uint64_t, uint64_t>::iterator range);

  std::map<uint64_t, uint64_t> by_offset_;            // Offset, bytes.
  std::set<std::pair<uint64_t, uint64_t>> by_bytes_;  // Bytes, offset.
  uint64_t free_bytes_ = 0;
};

}  // namespace haulway::arena
