// The notes of a file in segments: texts by key, for any use. A codec: bytes to
// facts and back, no I/O.

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

// Parses notes by rule S09, in the order of the file.
Result<Notes> ParseNotes(std::span<const std::byte> bytes,
                         const ParseLimits& limits);

// Encodes notes. Fails with kInvalidArgument for keys that repeat or are empty
// and for text that is not UTF-8, and with kLimit for text that is too long.
Result<std::vector<std::byte>> EncodeNotes(const Notes& notes);

}  // namespace haulway::tensorizer
