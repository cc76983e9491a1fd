// Where in a file in segments things stand, and where there is room: what a
// new file and an edited one have in common. Pure: numbers to numbers.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "haulway/status.h"

namespace haulway::tensorizer {

// Room for each tensor that is expected, as PR #170 reckons.
inline constexpr uint64_t kRoomInIndex = 256;
inline constexpr uint64_t kRoomInHeaders = 1024;

// Requires: the result is no larger than UINT64_MAX.
uint64_t RoundUp(uint64_t value, uint64_t multiple);

// Where the data of the next tensor begins, at a multiple of `alignment` and
// of 8; what is empty takes no such place. `*end` is where the last one ends,
// and then where this one does. Fails with kInvalidArgument past INT64_MAX / 2.
Result<uint64_t> PlaceData(uint64_t bytes, uint64_t alignment, uint64_t* end);

struct Range {
  uint64_t start = 0;
  uint64_t end = 0;
};

// The first multiple of `block` from `from` on at which `bytes` bytes meet none
// of `taken` and end by `limit`, or nullopt. Requires: block > 0, and no range
// ends past INT64_MAX.
std::optional<uint64_t> FindPlace(uint64_t bytes, uint64_t block, uint64_t from,
                                  uint64_t limit, std::vector<Range> taken);

}  // namespace haulway::tensorizer
