// Builds the object that a file's names describe: nested dicts and lists with
// tensors as leaves.

#pragma once

#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "tensorizer/tensorizer_format.h"

namespace haulway::tensorizer {

struct NamedTree {
  Value root;  // Leaves are Objects whose tensor is the row in the entries.
  // Parallel to the entries: steps joined by dots, escaped where two names
  // would be equal. Unique.
  std::vector<std::string_view> names;
};

// Builds the tree by rules I03 and I04. Positions 0, 1, 2 ... make a list.
// Other positions make a dict with them as keys, so that gaps stay visible. The
// tree and the names refer to the entries' memory and to `arena`.
Result<NamedTree> BuildTree(const std::vector<IndexEntry>& entries,
                            const ParseLimits& limits, TreeArena* arena);

}  // namespace haulway::tensorizer
