// Laying out tensorizer files in segments.

#pragma once

#include <memory>
#include <span>
#include <vector>

#include "haulway/layout.h"
#include "haulway/status.h"
#include "haulway/tensorizer_writer.h"
#include "tensorizer/tensor_plan.h"
#include "tensorizer/tensorizer_layout.h"

namespace haulway::tensorizer {

// Of each tensor that there is room for, as PR #170 reckons.
inline constexpr uint64_t kRoomInIndex = 256;
inline constexpr uint64_t kRoomInHeaders = 1024;
// Every tensor starts at a multiple of this.
inline constexpr uint64_t kDataStep = 8;

// The head of a file of version 2: all kSegmentHeadBytes. `preamble` gives the
// flags, sizes and segments.
std::vector<std::byte> EncodeHead(const Preamble& preamble);

// LayOutPlans() for both layouts of segments.
Result<std::unique_ptr<const haulway::Layout>> LayOutSegments(
    std::vector<TensorPlan> plans, const TensorizerOptions& options);

}  // namespace haulway::tensorizer
