// The zip container: files of torch.save() since 1.6, TorchScript archives and
// torch.package archives.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::torch {

// Returns whether a file that begins with `head` has this format.
bool IsZip(std::span<const std::byte> head);
// Returns whether a zip has a record that torch would read; false if the zip is
// broken.
bool HoldsPickle(const ByteSource& source);

// Opens the archive. For a file that torch wrote, takes at most four reads of
// the source, whatever the number of tensors: the end, the directory, and twice
// a few records.
Result<std::unique_ptr<const FormatReader>> OpenZip(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
// The same for a file that one process of a training wrote. Its classes are
// data, and its DTensors and ShardedTensors must be understood. Fails with
// kUnsafe for anything that only code could make.
Result<std::unique_ptr<const FormatReader>> OpenOfProcess(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyZip(std::shared_ptr<const ByteSource> source,
                               const VerifyOptions& options);
// The same for what OpenOfProcess() opens.
Result<VerifyReport> VerifyOfProcess(std::shared_ptr<const ByteSource> source,
                                     const VerifyOptions& options);

}  // namespace haulway::torch
