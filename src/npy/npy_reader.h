// A file of one array, as numpy.save() writes it.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::npy {

// Whether a file that begins with `head` is of this format.
bool IsNpy(std::span<const std::byte> head);

// The object is the array itself, and its name "tensor", as in a file of torch
// that holds nothing else. Costs one read of the source. Fails as the header's
// rules say, with kUnsafe for Python objects and kUnsupported for other
// elements that are no numbers.
Result<std::unique_ptr<const FormatReader>> OpenNpy(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyNpy(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);

}  // namespace haulway::npy
