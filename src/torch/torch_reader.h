// The zip container: what torch.save has written since 1.6, TorchScript
// archives and torch.package archives (spec 2.1 to 2.10).

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::torch {

// Whether a file that begins with `head` is of this format.
bool IsZip(std::span<const std::byte> head);
// Whether a zip has a record that torch would read; false if it is broken.
bool HoldsPickle(const ByteSource& source);

// Costs at most four reads of the source, whatever the number of tensors, for
// a file that torch laid out: the end, the directory, and twice a few records.
Result<std::unique_ptr<const FormatReader>> OpenZip(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyZip(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);

}  // namespace haulway::torch
