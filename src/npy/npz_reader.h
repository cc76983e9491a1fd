// A zip of arrays, as numpy.savez() and savez_compressed() write it.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::npy {

// Whether a file that begins with `head` is a zip whose first record is an
// array, or one without records. Other zips may know the head as well.
bool IsNpz(std::span<const std::byte> head);

// Costs five vectored reads of the source, and one for each few thousand
// arrays. An array whose elements are no numbers is listed with the type
// kOpaque; reading it fails and names it, with kUnsafe for Python objects.
Result<std::unique_ptr<const FormatReader>> OpenNpz(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyNpz(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);

}  // namespace haulway::npy
