// The notes of a file in segments: text by key, for the user to say what he
// likes. A codec: bytes to facts and back, no I/O.

#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway::tensorizer {

using Notes = std::vector<std::pair<std::string, std::string>>;

inline constexpr size_t kMaxNoteKeyBytes = 65535;
inline constexpr size_t kMaxNoteBytes = 0xFFFFFFFF;

// Rule S09. In the file's order.
Result<Notes> ParseNotes(std::span<const std::byte> bytes,
                         const ParseLimits& limits);

// Fails with kInvalidArgument for keys that repeat or are empty, and what is
// not UTF-8, and kLimit for what is too long.
Result<std::vector<std::byte>> EncodeNotes(const Notes& notes);

}  // namespace haulway::tensorizer
