// Checkpoints in safetensors files.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::safetensors {

// Whether a file that begins with `head` is of this format.
bool IsSafetensors(std::span<const std::byte> head);

// Costs two reads of the source.
Result<std::unique_ptr<const FormatReader>> OpenSafetensors(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
// How long a file is that begins so, by its header. Fails where that is cut.
Result<uint64_t> WholeBytes(const ByteSource& cut, const ParseLimits& limits);
Result<VerifyReport> VerifySafetensors(std::shared_ptr<const ByteSource> source,
                                       const VerifyOptions& options);

}  // namespace haulway::safetensors
