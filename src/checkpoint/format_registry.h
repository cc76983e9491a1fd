// Which format a file is of.

#pragma once

#include <string_view>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// The one format of `source`, in one read. Fails with kUnsupported if it is
// none, and with kCorrupt under kStrict if it is consistent with a second one
// as well.
Result<const FormatEntry*> DetectFormat(const ByteSource& source,
                                        Strictness strictness);

// Whether that is what indexes of several files are known and opened by, which
// are no format of their own.
bool IsOfShards(const FormatEntry& format);

// What other programs' files are of whose names end like `path`: "npz"; empty
// if that is not known.
std::string_view ForeignBySuffix(std::string_view path);

// As FormatToWrite(), but an ending that means nothing fails with
// kInvalidArgument, which tells those that do.
Result<Format> FormatOfEnding(std::string_view path);

}  // namespace haulway
