// Where readers of zip would find an archive in a file, whatever is before it.

#pragma once

#include <cstdint>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// The offset of the first record of each zip that Python's zipfile or torch's
// reader (miniz) would open: both look for end records near the end of the
// file, and take the directory to be at different places. Empty if they find
// none with records. Fails if the source does.
Result<std::vector<uint64_t>> FindZips(const ByteSource& source);

// Where each ends of the archives that stand in a row from the first byte to
// the last; empty if there is anything else. Reads all of the source.
Result<std::vector<uint64_t>> ZipsInARow(const ByteSource& source);

}  // namespace haulway::scan
