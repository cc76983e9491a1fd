// Rebuilds the saved state dict from flat names.

#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::dcp {

// A leaf of the state dict.
struct Leaf {
  std::string_view name;  // The key in the flat state dict.
  // Keys and list positions of the leaf; if empty, the name is the only key.
  std::span<const Value> path;
  Value value;
};

// Builds the dict that PyTorch's unflatten_state_dict() returns: a key makes a
// dict and a position a list, with None at positions without an entry.
// Allocates in `arena`. Fails with kCorrupt for paths that contradict one
// another, and with kLimit for positions far beyond the number of entries.
Result<Value> BuildStateDict(std::span<const Leaf> leaves, TreeArena* arena);

}  // namespace haulway::dcp
