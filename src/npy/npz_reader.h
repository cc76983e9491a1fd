// Reads a zip of arrays, as numpy.savez() and savez_compressed() write it.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::npy {

// Returns whether a file that begins with `head` is a zip whose first record is
// an array, or a zip without records. True if the name of the first record is
// longer than `head`. Other kinds of zips may begin with an
// array too.
bool IsNpz(std::span<const std::byte> head);
// The same, whatever the length of the first record's name.
bool BeginsWithArray(const ByteSource& source);

// Opens an archive with five vectored reads of the source, and one for each few
// thousand arrays. An array whose elements are not numbers is listed with dtype
// kOpaque. Reading it fails and names it, with kUnsafe for Python objects.
Result<std::unique_ptr<const FormatReader>> OpenNpz(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyNpz(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);

}  // namespace haulway::npy
