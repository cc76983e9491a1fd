// Reads GGUF files as checkpoints.

#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::gguf {

// Returns whether a file that begins with `head` has this format.
bool IsGguf(std::span<const std::byte> head);

// Opens a file with one read of the source, and one more each time the header
// is longer than the bytes read, which are then four times as many: five for 16
// MiB.
Result<std::unique_ptr<const FormatReader>> OpenGguf(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifyGguf(std::shared_ptr<const ByteSource> source,
                                const VerifyOptions& options);

}  // namespace haulway::gguf
