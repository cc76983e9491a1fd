// Computes where things are placed in a file in segments, and where there is
// room, for new files and for edits. Pure: no I/O.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "haulway/status.h"

namespace haulway::tensorizer {

// Room reserved per expected tensor, as in PR #170.
inline constexpr uint64_t kRoomInIndex = 256;
inline constexpr uint64_t kRoomInHeaders = 1024;

// Rounds `value` up to a multiple. Requires: the result is at most UINT64_MAX.
uint64_t RoundUp(uint64_t value, uint64_t multiple);

// Returns where the data of the next tensor begins: at a multiple of
// `alignment` and of 8, except for empty data. `*end` is the end of the
// previous tensor, and then of this one. Fails with kInvalidArgument past
// INT64_MAX / 2.
Result<uint64_t> PlaceData(uint64_t bytes, uint64_t alignment, uint64_t* end);

struct Range {
  uint64_t start = 0;
  uint64_t end = 0;
};

// Returns the first multiple of `block` from `from` on at which `bytes` bytes
// overlap none of `taken` and end by `limit`, or nullopt. Requires: block > 0,
// and no range ends past INT64_MAX.
std::optional<uint64_t> FindPlace(uint64_t bytes, uint64_t block, uint64_t from,
                                  uint64_t limit, std::vector<Range> taken);

}  // namespace haulway::tensorizer
