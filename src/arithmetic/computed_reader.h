// A checkpoint of which some weights are computed from stored tensors.

#pragma once

#include <memory>

#include "arithmetic/find_weights.h"
#include "haulway/format.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// Returns a flat dict of the weights, and of the tensors that stay. Weights are
// computed when they are read, each range by itself. Fails with kLimit if their
// sizes overflow.
Result<std::unique_ptr<const FormatReader>> MakeComputedReader(
    std::shared_ptr<const FormatReader> stored, FoundWeights found);

}  // namespace haulway::arithmetic
