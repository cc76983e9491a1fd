// The names of tensors: the paths to them in an object.

#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "haulway/tree.h"
#include "torch/torch_tensors.h"

namespace haulway::torch {

// Joins paths. In the escaped form, components that contain a dot are escaped,
// so that different paths have different names. In the plain form, dots in keys
// are not escaped.
class Paths {
 public:
  // When `arena` exceeds `most_bytes`, Child() returns the parent's path and
  // sets `*cut`.
  Paths(TreeArena* arena, uint64_t most_bytes, bool escaped, bool* joined,
        bool* cut)
      : arena_(*arena),
        most_bytes_(most_bytes),
        escaped_(escaped),
        joined_(*joined),
        cut_(*cut) {}

  std::string_view Child(std::string_view parent, const Value& key) const {
    if (parent.empty() && key.is(Kind::kString) && IsPlain(key.text())) {
      return key.text();
    }
    return Join(parent, NamePart(key, escaped_));
  }
  std::string_view Child(std::string_view parent, uint64_t index) const {
    return Join(parent, fmt::format("{}", index));
  }
  // Returns the path of a part of a tensor that the format names, or of an
  // attribute.
  std::string_view Part(std::string_view parent, std::string_view name) const {
    return Join(parent,
                escaped_ ? fmt::format("\\{}", name) : std::string(name));
  }

 private:
  static bool IsPlainByte(char c) { return c >= 0x20 && c < 0x7F && c != '\\'; }
  bool IsPlain(std::string_view text) const {
    for (const char c : text) {
      if (!IsPlainByte(c) || (escaped_ && c == '.')) return false;
    }
    return !text.empty();
  }
  std::string_view Join(std::string_view parent,
                        std::string_view component) const {
    joined_ = true;
    if (parent.size() + component.size() > most_bytes_ ||
        arena_.allocated_bytes() >
            most_bytes_ - (parent.size() + component.size())) {
      cut_ = true;
      return parent;
    }
    if (parent.empty()) return arena_.Copy(component);
    return arena_.Copy(fmt::format("{}.{}", parent, component));
  }

  TreeArena& arena_;
  const uint64_t most_bytes_;
  const bool escaped_;
  bool& joined_;  // Set once a path is not just a string key.
  bool& cut_;
};

}  // namespace haulway::torch
