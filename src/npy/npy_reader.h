// Reads a file with one array, as numpy.save() writes it.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::npy {

// Returns whether a file that begins with `head` has this format.
bool IsNpy(std::span<const std::byte> head);

// Opens a file with one read of the source. The object is the array itself, and
// its name is "tensor", as in a torch file that contains only a tensor. Fails
// by the header's rules, with kUnsafe for Python objects, and with kUnsupported
// for other elements that are not numbers.
Result<std::unique_ptr<const FormatReader>> OpenNpy(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyNpy(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);

}  // namespace haulway::npy
