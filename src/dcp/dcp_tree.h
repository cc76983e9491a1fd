// From flat names to the state dict that was saved.

#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::dcp {

// What stands at a path of the state dict.
struct Leaf {
  std::string_view name;  // Its key in the flat state dict.
  // The keys and positions that lead there; empty: its name is the one key.
  std::span<const Value> path;
  Value value;
};

// The dict that PyTorch's unflatten_state_dict() makes of them: a key makes a
// dict and a position a list, whose places without an entry hold None. Made in
// `arena`. Fails with kCorrupt for paths that contradict one another, and
// kLimit for positions far beyond the number of entries.
Result<Value> BuildStateDict(std::span<const Leaf> leaves, TreeArena* arena);

}  // namespace haulway::dcp
