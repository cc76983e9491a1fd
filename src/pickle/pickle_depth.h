// Measures how deep a tree is nested that may share parts and contain cycles.

#pragma once

#include <cstdint>

#include "haulway/tree.h"

namespace haulway::pickle {

// Returns the maximum number of containers on a path from `root` down that
// visits each at most once. Containers in a cycle count as if each were below
// another. So code that descends a tree and tracks visited containers never
// goes deeper. Linear in the size of the tree; does not recurse.
uint64_t MeasureDepth(const Value& root);

}  // namespace haulway::pickle
