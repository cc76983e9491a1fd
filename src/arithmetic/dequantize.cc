#include "arithmetic/dequantize.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "arithmetic/computed_reader.h"
#include "arithmetic/declaration.h"
#include "base/text.h"
#include "haulway/index.h"
#include "tensor/scaled_tensors.h"

namespace haulway::arithmetic {

namespace {

Dequantized DescribeFound(const FormatReader& reader,
                          const FoundWeights& found) {
  Dequantized made;
  made.quantization = {found.method, found.format, found.weights.size()};
  if (!found.weights.empty()) made.dtype = found.weights.front().terms.to;
  const auto& entries = reader.index().entries;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (found.weight_of[i] == kIsDropped) {
      made.dropped.emplace_back(entries[i].name);
    }
  }
  std::ranges::sort(made.dropped);
  return made;
}

// Returns whether any tensor could be a quantized weight. If none could,
// config.json need not be asked for.
bool MayBeQuantized(const CheckpointIndex& index) {
  return std::ranges::any_of(index.tensors, [](const TensorInfo& tensor) {
    switch (Describe(tensor.dtype).kind) {
      case DTypeKind::kFloat:
        return ItemBytes(tensor.dtype) == 1;
      case DTypeKind::kInt:
      case DTypeKind::kUInt:
        // The state of bitsandbytes is bytes in one dimension.
        return tensor.shape.size() >= (tensor.dtype == DType::kU8 ? 1u : 2u) &&
               ItemBytes(tensor.dtype) <= 4;
      case DTypeKind::kPacked:
      case DTypeKind::kBlocks:
        return true;
      default:
        return false;
    }
  });
}

// A GGUF file says itself what its types are.
Result<Declaration> DeclarationOf(const FormatReader& reader,
                                  const ByteSource& beside) {
  if (reader.index().format == Format::kGguf) return Declaration();
  return ReadDeclaration(beside);
}

}  // namespace

Result<PlainCheckpoint> Dequantize(std::unique_ptr<const FormatReader> reader,
                                   const ByteSource& beside,
                                   std::optional<DType> to) {
  HAULWAY_ASSIGN(const Declaration declaration, DeclarationOf(*reader, beside));
  HAULWAY_ASSIGN(FoundWeights found, FindWeights(*reader, declaration, to,
                                                 /*widens_halves=*/true));
  if (!to.has_value() && !found.weights.empty() &&
      !declaration.wrong_dtype.empty()) {
    return Status(Code::kCorrupt,
                  fmt::format("weights cannot be of the dtype {}: expected a "
                              "floating-point one, such as \"bfloat16\"",
                              Quote(declaration.wrong_dtype)))
        .Of("config.json");
  }
  PlainCheckpoint made;
  if (!found.method.empty()) {
    made.dequantized = DescribeFound(*reader, found);
  }
  if (found.weights.empty() &&
      (!made.dequantized.has_value() || made.dequantized->dropped.empty())) {
    made.reader = std::move(reader);
    return made;
  }
  HAULWAY_ASSIGN(made.reader,
                 MakeComputedReader(std::move(reader), std::move(found)));
  return made;
}

Result<Merged> MergeAdapters(const ByteSource& beside,
                             std::span<const Adapter> adapters,
                             std::unique_ptr<const FormatReader>* reader) {
  HAULWAY_ASSIGN(FoundWeights found, FindMerges(**reader, beside, adapters));
  const Merged made{found.weights.size(), !found.added.empty()};
  HAULWAY_ASSIGN(*reader,
                 MakeComputedReader(std::move(*reader), std::move(found)));
  return made;
}

Result<uint64_t> RuleTensors(const ByteSource& beside,
                             const RulesToApply& rules,
                             std::unique_ptr<const FormatReader>* reader) {
  HAULWAY_ASSIGN(RuledTensors made, ApplyRules(**reader, beside, rules));
  HAULWAY_ASSIGN(*reader,
                 MakeComputedReader(std::move(*reader), std::move(made.found)));
  return made.ruled;
}

Result<std::optional<Quantization>> DescribeQuantization(
    const FormatReader& reader, const ByteSource& beside) {
  if (!MayBeQuantized(reader.index())) return std::optional<Quantization>();
  HAULWAY_ASSIGN(const Declaration declaration, DeclarationOf(reader, beside));
  const auto found = FindWeights(reader, declaration, std::nullopt,
                                 /*widens_halves=*/false);
  if (found.ok()) {
    if (found->method.empty()) return std::optional<Quantization>();
    return std::optional(DescribeFound(reader, *found).quantization);
  }
  Quantization made{declaration.method, declaration.format, 0};
  made.weights = ScaledTensors(reader.index()).weight_count();
  if (made.method.empty() && made.weights == 0) {
    return std::optional<Quantization>();
  }
  return std::optional(std::move(made));
}

}  // namespace haulway::arithmetic
