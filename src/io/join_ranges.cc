#include "io/join_ranges.h"

#include <algorithm>

namespace haulway {

uint64_t LargestHole(const SourceTraits& traits, uint64_t asked) {
  if (traits.gathers) return traits.free_hole;
  return traits.is_server() ? std::max(asked, kServerHole) : asked;
}

bool JoinRanges(ByteRange* read, const ByteRange& next,
                const JoinLimits& limits) {
  const uint64_t end = read->offset + read->length;
  if (next.offset < end && !limits.may_overlap) return false;
  if (next.offset > end && next.offset - end > limits.largest_hole) {
    return false;
  }
  const uint64_t length =
      std::max(end, next.offset + next.length) - read->offset;
  if (length > limits.largest_read) return false;
  read->length = length;
  return true;
}

}  // namespace haulway
