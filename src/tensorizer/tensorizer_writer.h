// Laying out tensorizer files whose tensors are planned.

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

// What an interleaved file reserves for the index of such tensors.
uint64_t IndexBytes(std::span<const TensorPlan> plans, uint32_t version);

// LayOutTensorizer() for tensors that PlanTensors() planned. `index_bytes` of
// an interleaved file are as IndexBytes() has them if 0. Sets the padding of
// headers.
Result<std::unique_ptr<const haulway::Layout>> LayOutPlans(
    std::vector<TensorPlan> plans, uint32_t version,
    const TensorizerOptions& options, uint64_t index_bytes = 0);

}  // namespace haulway::tensorizer
