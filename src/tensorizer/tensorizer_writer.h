// Lays out tensorizer files from planned tensors.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "haulway/layout.h"
#include "haulway/status.h"
#include "haulway/tensorizer.h"
#include "tensorizer/tensor_plan.h"

namespace haulway::tensorizer {

// Returns the size that an interleaved file reserves for the index of these
// tensors.
uint64_t IndexBytes(std::span<const TensorPlan> plans, uint32_t version);

// Implements LayOutTensorizer() for tensors from PlanTensors(). If
// `index_bytes` is 0, an interleaved file reserves IndexBytes(). Sets the
// padding of headers.
Result<std::unique_ptr<const haulway::Layout>> LayOutPlans(
    std::vector<TensorPlan> plans, uint32_t version,
    const TensorizerOptions& options, uint64_t index_bytes = 0);

}  // namespace haulway::tensorizer
