// Makes weights of the tensors that names brought together: checks their dtypes
// and shapes, and says how the elements follow.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arithmetic/declaration.h"
#include "arithmetic/weight.h"
#include "haulway/dtype.h"
#include "haulway/index.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

// What a weight is made of.
struct Making {
  const CheckpointIndex& index;
  const Declaration& declaration;
  const GroupFinder& groups;
  std::string_view module;  // The name without that of the root's part.
  // Names of the tensors, by Role.
  std::span<const std::string_view> names;
  // The bytes of kShape and kState, if they are there.
  std::span<const std::byte> stated;
  Weight* weight;  // With its tensors; the rest is to be filled.

  const TensorInfo& info(Role role) const {
    return index.tensors[weight->tensor(role)];
  }
  // Returns a failure of a tensor.
  Status Wrong(Role role, std::string_view what) const;
};

// Each fails with kMismatch, naming the tensor, for a dtype or shape that does
// not fit, and with kUnsupported for a variant that is not known.

// FP8, FP4 and MXFP8: a number and its scale, multiplied in float32.
Status MakeFloat(const Making& making);
// A `weight` of compressed-tensors: FP8 or INT8.
Status MakeCompressed(const Making& making);
// A `weight_packed` of compressed-tensors: integers, NVFP4, MXFP4 or MXFP6.
Status MakePacked(const Making& making);
Status MakeGptq(const Making& making);
Status MakeAwq(const Making& making);
// MXFP4 blocks of stacked matrices, as in gpt-oss.
Status MakeStacked(const Making& making);
// NVFP4 of ModelOpt.
Status MakeNvfp4(const Making& making);
Status MakeFourBits(const Making& making);
// LLM.int8() of bitsandbytes.
Status MakeEightBits(const Making& making);
// A type of ggml.
Status MakeBlocks(const Making& making);

}  // namespace haulway::arithmetic
