// Which reads of a source are made as one.

#pragma once

#include <cstdint>

#include "haulway/options.h"
#include "haulway/source.h"

namespace haulway {

// About as many bytes as a server sends in the time of a round trip: reading so
// large a hole costs no more than another request.
inline constexpr uint64_t kServerHole = 256 * kKiB;

struct JoinLimits {
  uint64_t largest_hole = 0;           // Unwanted bytes between two ranges.
  uint64_t largest_read = UINT64_MAX;  // Bytes of the read that they become.
  // Whether ranges that share bytes are joined.
  bool may_overlap = true;
};

// Returns the largest hole to read between two ranges of this source, where
// `asked` is what its options say: for a server at least kServerHole, and
// nothing where the source itself joins what it reads.
uint64_t LargestHole(const SourceTraits& traits, uint64_t asked);

// Extends `*read` to the end of `next` and returns true if the limits let both
// be one read; otherwise changes nothing. Requires: neither range overflows,
// and if they may overlap, `next` does not begin before `*read`.
bool JoinRanges(ByteRange* read, const ByteRange& next,
                const JoinLimits& limits);

}  // namespace haulway
