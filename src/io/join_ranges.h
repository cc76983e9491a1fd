// Decides which reads of a source are merged, and merges them.

#pragma once

#include <cstdint>
#include <vector>

#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

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

struct JoinedReads {
  JoinLimits limits;
  // Requests of at least this size are read directly into their memory, and not
  // merged.
  uint64_t direct_from = 64 * kKiB;
  // Bytes of merged reads that are in memory at once, but for the last of them.
  uint64_t most_memory = UINT64_MAX;
  // Whether a merged read over a hole has at most twice the wanted bytes.
  bool limits_waste = false;
};

// Does the requests, in any order, with few reads of the source. Fails as
// ByteSource::ReadMany() does.
Status ReadJoined(const ByteSource& source, std::vector<ReadRequest> requests,
                  const JoinedReads& how);

}  // namespace haulway
