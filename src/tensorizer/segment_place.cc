#include "tensorizer/segment_place.h"

#include <algorithm>

#include "base/checked.h"

namespace haulway::tensorizer {

std::optional<uint64_t> FindPlace(uint64_t bytes, uint64_t block, uint64_t from,
                                  uint64_t limit, std::vector<Range> taken) {
  std::ranges::sort(taken, {}, &Range::start);
  uint64_t at = 0;
  if (!CheckedRoundUp(from, block, &at)) return std::nullopt;
  for (const Range& range : taken) {
    if (range.end <= at || range.start == range.end) continue;
    if (RangeFits(at, bytes, range.start)) break;
    if (!CheckedRoundUp(range.end, block, &at)) return std::nullopt;
  }
  if (!RangeFits(at, bytes, limit)) return std::nullopt;
  return at;
}

}  // namespace haulway::tensorizer
