#include "tensorizer/segment_place.h"

#include <algorithm>

#include "base/checked.h"

namespace haulway::tensorizer {

namespace {

// Alignment of every tensor.
constexpr uint64_t kDataStep = 8;

}  // namespace

uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

Result<uint64_t> PlaceData(uint64_t bytes, uint64_t alignment, uint64_t* end) {
  uint64_t start = *end;
  const uint64_t step = std::max(alignment, kDataStep);
  if ((bytes != 0 && !CheckedRoundUp(*end, step, &start)) ||
      !CheckedAdd(start, bytes, end) || *end > INT64_MAX / 2) {
    return Status(Code::kInvalidArgument, "tensors are too large");
  }
  return start;
}

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
