// The names of tensors: one key, or a path of keys and list positions
// (spec 2.9).

#pragma once

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

// Whether `name` holds a path as JSON, rather than being the one key.
inline bool IsStructured(std::string_view name) {
  return name.starts_with(kStructuredMark);
}

// Rule I03; at most `max_steps` steps. Never empty.
Result<Path> ParseName(std::string_view name, uint32_t max_steps);

// As the reference spells it: a single key plainly, else JSON in ASCII. Fails
// with kInvalidArgument for a path that no reader would take, and kLimit for
// one of more than kMaxNameBytes.
Result<std::string> EncodeName(const Path& path);

}  // namespace haulway::tensorizer
