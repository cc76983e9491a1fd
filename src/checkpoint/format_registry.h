// The formats, in the order in which they are tried.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/checkpoint.h"
#include "haulway/verify.h"

namespace haulway {

struct FormatEntry {
  // Whether `source` is of this format. Reads little; an error only if the
  // source cannot be read.
  Result<bool> (*detect)(const ByteSource& source);
  Result<std::unique_ptr<const FormatReader>> (*open)(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options);
  Result<VerifyReport> (*verify)(std::shared_ptr<const ByteSource> source,
                                 const VerifyOptions& options);
  Result<ScanReport> (*scan)(std::shared_ptr<const ByteSource> source,
                             const OpenOptions& options);
};

// The one format of `source`. Fails with kUnsupported if it is none, and with
// kCorrupt under kStrict if it is consistent with a second one as well.
Result<const FormatEntry*> DetectFormat(const ByteSource& source,
                                        Strictness strictness);

}  // namespace haulway
