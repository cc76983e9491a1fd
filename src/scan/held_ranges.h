// Ranges of a server's source that are read together, before a scan looks at
// them one by one.

#pragma once

#include <memory>
#include <span>

#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// Reads the ranges in one ReadMany() and returns a source that answers reads
// within one of them from memory, and others as `source` does. Returns `source`
// itself if that is no server, where a small read costs little. Fails as
// reading does. Requires: the ranges lie within the source.
Result<std::shared_ptr<const ByteSource>> HoldRanges(
    std::shared_ptr<const ByteSource> source,
    std::span<const ByteRange> ranges);

}  // namespace haulway::scan
