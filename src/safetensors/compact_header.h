// Parses the form of headers that the reference and most other writers emit.
// Matching it directly is several times as fast as parsing JSON.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "safetensors/safetensors_header.h"

namespace haulway::safetensors {

// Parses the first `json_bytes` bytes of `json` if they have spaces only at the
// end, no escapes, and in each tensor dtype, shape and data_offsets in this
// order. The result equals that of parsing them as JSON, without dropped
// tensors. Returns nullopt for any other header, valid or not. Requires:
// json.size() >= json_bytes + kPaddingBytes.
std::optional<Header> ParseCompactHeader(std::span<const std::byte> json,
                                         uint64_t json_bytes,
                                         const ParseLimits& limits,
                                         TreeArena* arena);

// Parses any JSON header, and reports faults by rules S04 and S06 to S09.
Result<Header> ParseJsonHeader(std::span<const std::byte> json,
                               uint64_t json_bytes, Strictness strictness,
                               const ParseLimits& limits, TreeArena* arena);

}  // namespace haulway::safetensors
