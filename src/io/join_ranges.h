// Decides which reads of a source are merged.

#pragma once

#include <cstdint>

#include "haulway/options.h"
#include "haulway/source.h"

namespace haulway {

// About as many bytes as a server sends during a round trip: reading a hole of
// this size costs no more than another request.
inline constexpr uint64_t kServerHole = 256 * kKiB;

// Largest hole that a source which merges reads itself reads in a file, because
// that costs no more than another read.
inline constexpr uint64_t kGatheredHole = 4 * kKiB;

struct JoinLimits {
  uint64_t largest_hole = 0;           // Unwanted bytes between two ranges.
  uint64_t largest_read = UINT64_MAX;  // Bytes of the merged read.
  // Whether ranges that share bytes are merged.
  bool may_overlap = true;
};

// Returns the largest hole to read between two ranges of this source. `asked`:
// the value from the options. For a server at least kServerHole; 0 if the
// source itself merges reads.
uint64_t LargestHole(const SourceTraits& traits, uint64_t asked);

// Extends `*read` to the end of `next` and returns true if the limits permit
// one read for both; otherwise changes nothing. Requires: neither range
// overflows, and if they may overlap, `next` does not begin before `*read`.
bool JoinRanges(ByteRange* read, const ByteRange& next,
                const JoinLimits& limits);

}  // namespace haulway
