// Splits the tensors in which Megatron stacks those of all layers.

#pragma once

#include <vector>

#include "haulway/dcp.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::dcp {

// Replaces each tensor X.layers.Y by X.layers.0.Y, X.layers.1.Y, ... if Y does
// not begin with a number. The new tensors keep a first dimension, of size 1,
// as their chunks in the files have it. Returns, for each tensor, whether it is
// such a layer. Names are allocated in `arena`. Fails with kUnsupported for a
// chunk of several layers.
Result<std::vector<bool>> SplitLayers(Metadata* metadata, TreeArena* arena);

}  // namespace haulway::dcp
