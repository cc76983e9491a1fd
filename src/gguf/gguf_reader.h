// Checkpoints in GGUF files.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::gguf {

// Whether a file that begins with `head` is of this format.
bool IsGguf(std::span<const std::byte> head);

// Costs one read of the source, and one more each time the header turns out to
// be four times as long as what was read: five for 16 MiB.
Result<std::unique_ptr<const FormatReader>> OpenGguf(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyGguf(std::shared_ptr<const ByteSource> source,
                                const VerifyOptions& options);

}  // namespace haulway::gguf
