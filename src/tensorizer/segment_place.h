// Where in a file there is room. Pure: numbers to numbers.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace haulway::tensorizer {

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
