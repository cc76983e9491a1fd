#include "tensor/scaled_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/name_index.h"
#include "base/text.h"
#include "tensor/dtype_kind.h"

namespace haulway {

namespace {

// A layout is a row. The first that fits counts.
constexpr ScaledLayout kLayouts[] = {
    {"FP8 in blocks, MXFP8",
     "",
     "_scale_inv",
     true,
     {"_activation_scale", "_input_scale"}},
    {"FP8 or FP4 of DeepSeek", ".weight", ".scale"},
    {"FP8 of Mistral", ".weight", ".qscale_weight", true, {".qscale_act"}},
    {"FP8 of ComfyUI", ".weight", ".scale_weight", true, {".scale_input"}},
    {"FP8, INT8 or NVFP4",
     "",
     "_scale",
     true,
     {"_scale_2", "_zero_point", "_g_idx"}},
    {"packed by compressed-tensors",
     "_packed",
     "_scale",
     true,
     {"_global_scale", "_zero_point", "_g_idx"}},
    {"GPTQ or AWQ", ".qweight", ".scales", true, {".qzeros"}},
    {"MXFP4", "_blocks", "_scales"},
    {"4 bits of bitsandbytes",
     "",
     ".absmax",
     false,
     {".quant_map", ".nested_absmax", ".nested_quant_map"}},
    {"8 bits of bitsandbytes", ".weight", ".SCB"},
    {"EETQ", "", "_scales"},
    {"HIGGS", ".weight", ".scales", true, {".tables", ".tables2"}},
    {"AQLM", ".codes", ".scales", true, {".codebooks"}},
    {"HQQ", ".W_q", ".scale", true, {".zero"}},
    {"Quanto", "._data", "._scale", true, {"._shift"}},
    {"torchao", "_qdata", "_scale", true, {"_zero_point"}},
};

constexpr std::string_view kRemedyOfCasts =
    "dequantize the model (the option dequantize, which load and convert "
    "have), "
    "cast the stored numbers (the option raw), or leave them out";
constexpr std::string_view kRemedy =
    "dequantize the model (the option dequantize)";

bool IsCoded(DType dtype) {
  switch (Describe(dtype).kind) {
    case DTypeKind::kFloat:
      return ItemBytes(dtype) == 1;
    case DTypeKind::kInt:
    case DTypeKind::kUInt:
      return ItemBytes(dtype) <= 4;
    default:
      return Describe(dtype).kind == DTypeKind::kPacked;
  }
}

// Finds tensors by name. The table is made for the first one.
class Names {
 public:
  explicit Names(const CheckpointIndex& index) : entries_(index.entries) {}

  const Entry* Find(std::string_view name) {
    const auto name_of = [&](uint32_t i) { return entries_[i].name; };
    if (!is_filled_) {
      names_.Reserve(entries_.size());
      for (uint32_t i = 0; i < entries_.size(); ++i) {
        names_.Add(entries_[i].name, i, name_of);
      }
      is_filled_ = true;
    }
    const uint32_t found = names_.Find(name, name_of);
    return found == NameIndex::kNone ? nullptr : &entries_[found];
  }

 private:
  const LongVector<Entry>& entries_;
  NameIndex names_;
  bool is_filled_ = false;
};

}  // namespace

std::span<const ScaledLayout> ScaledLayouts() { return kLayouts; }

ScaledTensors::ScaledTensors(const CheckpointIndex& index) : index_(index) {
  Names names(index);
  for (const Entry& scales : index.entries) {
    for (const ScaledLayout& layout : kLayouts) {
      if (!scales.name.ends_with(layout.scales)) continue;
      const std::string stem(
          scales.name.substr(0, scales.name.size() - layout.scales.size()));
      const Entry* const weight = names.Find(stem + std::string(layout.weight));
      if (weight == nullptr) continue;
      const DType dtype = index.tensors[weight->tensor].dtype;
      if (layout.is_coded && !IsCoded(dtype)) continue;
      const Part part{&layout, weight->name, scales.name};
      parts_.emplace(scales.tensor, part);
      for (const std::string_view other : layout.others) {
        if (other.empty()) break;
        const Entry* const found = names.Find(stem + std::string(other));
        if (found != nullptr) parts_.emplace(found->tensor, part);
      }
      parts_[weight->tensor] = {&layout, weight->name, scales.name, true};
      break;
    }
  }
}

Status ScaledTensors::CheckCast(uint32_t tensor) const {
  return Check(tensor, kRemedyOfCasts);
}

Status ScaledTensors::CheckPlain(uint32_t tensor) const {
  return Check(tensor, kRemedy);
}

Status ScaledTensors::Check(uint32_t tensor, std::string_view remedy) const {
  const auto found = parts_.find(tensor);
  if (found == parts_.end()) return Status();
  const Part& part = found->second;
  Status status(
      Code::kUnsupported,
      part.is_weight
          ? fmt::format("a cast would change what its numbers mean: it is "
                        "quantized ({}), and its scales are in {}: {}",
                        part.layout->called, Quote(part.scales), remedy)
          : fmt::format("a cast would change what {} means, which is quantized "
                        "({}) and needs these numbers: {}",
                        Quote(part.weight), part.layout->called, remedy));
  return std::move(status).In(
      Quote(part.is_weight ? part.weight : part.scales));
}

uint64_t ScaledTensors::weight_count() const {
  return static_cast<uint64_t>(std::ranges::count_if(
      parts_, [](const auto& part) { return part.second.is_weight; }));
}

Status ScaledTensors::CheckCastOfStorage(uint32_t storage) const {
  for (const auto& [tensor, part] : parts_) {
    if (index_.tensors[tensor].storage != storage) continue;
    return CheckCast(tensor);
  }
  return Status();
}

}  // namespace haulway
