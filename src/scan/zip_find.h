// Finds where zip readers would see an archive in a file, whatever precedes it.

#pragma once

#include <cstdint>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// Returns the offset of the first record of each zip that Python's zipfile or
// torch's reader (miniz) would open. Both look for end records near the end of
// the file, but compute the place of the directory differently. Empty if they
// find none with records. Fails if reading the source fails.
Result<std::vector<uint64_t>> FindZips(const ByteSource& source);

// Returns where each archive ends if the source consists of consecutive
// archives; empty otherwise. Reads the whole source.
Result<std::vector<uint64_t>> ZipsInARow(const ByteSource& source);

}  // namespace haulway::scan
