// Which format a file is of.

#pragma once

#include "haulway/format.h"
#include "haulway/limits.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// The one format of `source`, in one read. Fails with kUnsupported if it is
// none, and with kCorrupt under kStrict if it is consistent with a second one
// as well.
Result<const FormatEntry*> DetectFormat(const ByteSource& source,
                                        Strictness strictness);

}  // namespace haulway
