// The formats, in the order in which they are tried.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/checkpoint.h"
#include "haulway/verify.h"

namespace haulway {

// A block of tar, the longest that any format is known by.
inline constexpr size_t kHeadBytes = 512;

struct FormatEntry {
  // Whether a file is of this format that begins with `head`, its first
  // kHeadBytes bytes or all of it.
  bool (*detect)(std::span<const std::byte> head);
  Result<std::unique_ptr<const FormatReader>> (*open)(
      std::shared_ptr<const ByteSource> source, const OpenOptions& options);
  Result<VerifyReport> (*verify)(std::shared_ptr<const ByteSource> source,
                                 const VerifyOptions& options);
  Result<ScanReport> (*scan)(std::shared_ptr<const ByteSource> source,
                             const OpenOptions& options);
};

// The one format of `source`, in one read. Fails with kUnsupported if it is
// none, and with kCorrupt under kStrict if it is consistent with a second one
// as well.
Result<const FormatEntry*> DetectFormat(const ByteSource& source,
                                        Strictness strictness);

}  // namespace haulway
