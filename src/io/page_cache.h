// How much of a file the system holds in memory.

#pragma once

#include <cstdint>
#include <span>

#include "haulway/source.h"

namespace haulway {

// The share of these ranges of a file that is in the page cache, from a few
// samples spread evenly over them: cachestat(2), else mincore(2). 1 if the
// system does not say, and for no bytes at all.
double ResidentShare(int fd, uint64_t file_bytes,
                     std::span<const ByteRange> ranges);

// Whether all of this range is in the page cache; false where the system does
// not say.
bool IsResident(int fd, const ByteRange& range);

}  // namespace haulway
