// Tells how much of a file is in the page cache.

#pragma once

#include <cstdint>
#include <span>

#include "haulway/source.h"

namespace haulway {

// Returns the share of these ranges that is in the page cache, estimated from
// samples spread evenly over them: by cachestat(2), else mincore(2). Returns 1
// if the system does not tell, and for no bytes.
double ResidentShare(int fd, uint64_t file_bytes,
                     std::span<const ByteRange> ranges);

// Returns whether all of this range is in the page cache; false if the system
// does not tell.
bool IsResident(int fd, const ByteRange& range);

}  // namespace haulway
