// Where Python's zipfile would find a zip in a file, whatever is before it.

#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// The offset of the first record of a zip that zipfile would open, which looks
// for its end records in the last 64 KiB. Nullopt if it finds none with
// records. Fails if the source does.
Result<std::optional<uint64_t>> FindZip(const ByteSource& source);

// Where each ends of the archives that stand in a row from the first byte to
// the last; empty if there is anything else. Reads all of the source.
Result<std::vector<uint64_t>> ZipsInARow(const ByteSource& source);

}  // namespace haulway::scan
