// From the names of a file to the object they describe: nested dicts and
// lists with tensors as leaves.

#pragma once

#include <string_view>
#include <vector>

#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "tensorizer/tensorizer_format.h"

namespace haulway::tensorizer {

struct NamedTree {
  Value root;  // Leaves are Objects that are tensors: their row of entries.
  // Parallel to the entries: steps joined by dots, escaped where two would be
  // equal. Unique.
  std::vector<std::string_view> names;
};

// Rules I03 and I04. Positions that are 0, 1, 2 ... make a list, others a dict
// with them as keys, so that no gap is closed unseen. The tree and the names
// refer to the entries' memory and to `arena`.
Result<NamedTree> BuildTree(const std::vector<IndexEntry>& entries,
                            const ParseLimits& limits, TreeArena* arena);

}  // namespace haulway::tensorizer
