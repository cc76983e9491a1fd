// Reads the ranges that a scan will look at from a remote source in one
// request.

#pragma once

#include <memory>
#include <span>

#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::scan {

// Reads the ranges with one ReadMany(), and returns a source that serves reads
// within one range from memory and all other reads from `source`. Returns
// `source` itself if it is not remote, because small local reads are cheap.
// Fails if reading fails. Requires: the ranges lie within the source.
Result<std::shared_ptr<const ByteSource>> HoldRanges(
    std::shared_ptr<const ByteSource> source,
    std::span<const ByteRange> ranges);

}  // namespace haulway::scan
