// The names of tensors: one key, or a path of keys and list positions.

#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/status.h"

namespace haulway::tensorizer {

// A step of a path: a key of a dict, or a position in a list.
struct PathStep {
  bool is_position = false;
  uint64_t position = 0;
  std::string key;

  friend bool operator==(const PathStep&, const PathStep&) = default;
};
using Path = std::vector<PathStep>;

inline constexpr char kStructuredMark = 0x1E;
inline constexpr size_t kMaxNameBytes = 65535;

// Returns whether `name` is a path in JSON, not a single key.
inline bool IsStructured(std::string_view name) {
  return name.starts_with(kStructuredMark);
}

// Parses a name by rule I03, with at most `max_steps` steps. The result is
// never empty.
Result<Path> ParseName(std::string_view name, uint32_t max_steps);

// Encodes a path as the reference does: a single key as plain text, other paths
// as ASCII JSON. Fails with kInvalidArgument for a path that no reader accepts,
// and with kLimit if it needs more than kMaxNameBytes.
Result<std::string> EncodeName(const Path& path);

}  // namespace haulway::tensorizer
