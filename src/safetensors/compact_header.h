// The form in which the reference and most writers emit headers, matched
// directly, which is several times as fast as reading JSON in general.

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

// Parses the `json_bytes` bytes at the start of `json` if they have no space
// but at the end, no escapes, and in each tensor dtype, shape and data_offsets
// in this order; what it returns is what parsing them as JSON gives, with no
// tensor dropped. Nullopt for anything else, valid or not. Requires:
// json.size() >= json_bytes + kPaddingBytes.
std::optional<Header> ParseCompactHeader(std::span<const std::byte> json,
                                         uint64_t json_bytes,
                                         const ParseLimits& limits,
                                         TreeArena* arena);

// The same for any JSON, with its faults: rules S04 and S06 to S09.
Result<Header> ParseJsonHeader(std::span<const std::byte> json,
                               uint64_t json_bytes, Strictness strictness,
                               const ParseLimits& limits, TreeArena* arena);

}  // namespace haulway::safetensors
