// Reads safetensors files as checkpoints.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::safetensors {

// Returns whether a file that begins with `head` has this format.
bool IsSafetensors(std::span<const std::byte> head);

// Opens a file with two reads of the source.
Result<std::unique_ptr<const FormatReader>> OpenSafetensors(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);

}  // namespace haulway::safetensors
