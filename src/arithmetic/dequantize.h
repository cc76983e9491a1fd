// Presents a checkpoint with quantized weights as one with plain weights, one
// with adapters beside it as one into which they are merged, and one with rules
// as one of the tensors that they make.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "arithmetic/apply_rules.h"
#include "arithmetic/find_merges.h"
#include "haulway/dtype.h"
#include "haulway/format.h"
#include "haulway/quantization.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::arithmetic {

struct PlainCheckpoint {
  std::unique_ptr<const FormatReader> reader;
  // Nothing if no weight is quantized; `reader` is the same then.
  std::optional<Dequantized> dequantized;
};

// Opens the plain weights of `reader`. They are computed when they are read,
// each range by itself; all other tensors stay what they are. If a weight is
// quantized, the result is a flat dict. `beside`: the file that was opened; its
// folder may have config.json. `to`: as for FindWeights(). Fails as that does,
// and as ReadDeclaration() does.
Result<PlainCheckpoint> Dequantize(std::unique_ptr<const FormatReader> reader,
                                   const ByteSource& beside,
                                   std::optional<DType> to);

// Replaces `*reader` by one that shows a flat dict, with the adapters merged
// into its weights, one after another. Fails as FindMerges() does.
Result<Merged> MergeAdapters(const ByteSource& beside,
                             std::span<const Adapter> adapters,
                             std::unique_ptr<const FormatReader>* reader);

// Replaces `*reader` by one that shows a flat dict of the tensors that are
// there after the rules. Returns how many of them rules made or renamed. Fails
// as ApplyRules() does.
Result<uint64_t> RuleTensors(const ByteSource& beside,
                             const RulesToApply& rules,
                             std::unique_ptr<const FormatReader>* reader);

// Returns how the weights are quantized; nothing if no tensor could be such a
// weight. Fails as ReadDeclaration() does. Counts what it can of weights that
// Dequantize() refuses.
Result<std::optional<Quantization>> DescribeQuantization(
    const FormatReader& reader, const ByteSource& beside);

}  // namespace haulway::arithmetic
