// Lays out tensorizer files in segments.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "haulway/layout.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensor_plan.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

// Encodes the head of a file of version 2: all kSegmentHeadBytes. `preamble`
// gives the flags, sizes and segments.
std::vector<std::byte> EncodeHead(const Preamble& preamble);

// Implements LayOutPlans() for both segment layouts.
Result<std::unique_ptr<const haulway::Layout>> LayOutSegments(
    std::vector<TensorPlan> plans, const TensorizerOptions& options);

}  // namespace haulway::tensorizer
