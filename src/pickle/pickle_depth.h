// How deep a tree is nested, when it may share parts and hold cycles.

#pragma once

#include <cstdint>

#include "haulway/tree.h"

namespace haulway::pickle {

// The most containers that lie on one path from `root` down, each counted
// once; those that hold one another count as one under another. So code that
// descends a tree and keeps track of where it was never goes deeper. Linear
// in the size of the tree; does not recurse.
uint64_t MeasureDepth(const Value& root);

}  // namespace haulway::pickle
