#include "torch/torch_names.h"

#include <array>

namespace haulway::torch {

namespace {

struct RebuildRow {
  std::string_view module;
  std::string_view name;
  Rebuild rebuild;
};

constexpr std::array kRebuilds = {
    RebuildRow{"torch._utils", "_rebuild_tensor_v2", Rebuild::kTensorV2},
    RebuildRow{"torch._utils", "_rebuild_tensor_v3", Rebuild::kTensorV3},
    RebuildRow{"torch._utils", "_rebuild_parameter", Rebuild::kParameter},
    RebuildRow{"torch._utils", "_rebuild_parameter_with_state",
               Rebuild::kParameterWithState},
    RebuildRow{"torch._utils", "_rebuild_tensor", Rebuild::kTensor},
    RebuildRow{"torch._utils", "_rebuild_qtensor", Rebuild::kQuantized},
    RebuildRow{"torch._utils", "_rebuild_sparse_tensor", Rebuild::kSparse},
    RebuildRow{"torch._utils", "_rebuild_meta_tensor_no_storage",
               Rebuild::kMeta},
    RebuildRow{"torch._utils", "_rebuild_nested_tensor", Rebuild::kNested},
    RebuildRow{"torch._utils", "_rebuild_wrapper_subclass",
               Rebuild::kWrapperSubclass},
    RebuildRow{"torch._utils", "_rebuild_device_tensor_from_cpu_tensor",
               Rebuild::kDeviceFromCpu},
    RebuildRow{"torch._tensor", "_rebuild_from_type_v2", Rebuild::kFromType},
    RebuildRow{"torch._tensor", "_rebuild_from_type", Rebuild::kFromType},
};

struct StorageRow {
  std::string_view name;  // Without the suffix "Storage".
  StorageClass type;
};

// Spec 3.5.
constexpr std::array kStorages = {
    StorageRow{"Float", {DType::kF32, false}},
    StorageRow{"BFloat16", {DType::kBF16, false}},
    StorageRow{"Half", {DType::kF16, false}},
    StorageRow{"Long", {DType::kI64, false}},
    StorageRow{"Double", {DType::kF64, false}},
    StorageRow{"Int", {DType::kI32, false}},
    StorageRow{"Short", {DType::kI16, false}},
    StorageRow{"Char", {DType::kI8, false}},
    StorageRow{"Byte", {DType::kU8, false}},
    StorageRow{"Bool", {DType::kBool, false}},
    StorageRow{"ComplexDouble", {DType::kC128, false}},
    StorageRow{"ComplexFloat", {DType::kC64, false}},
    StorageRow{"QInt8", {DType::kQI8, false}},
    StorageRow{"QUInt8", {DType::kQU8, false}},
    StorageRow{"QInt32", {DType::kQI32, false}},
    StorageRow{"QUInt4x2", {DType::kQU4X2, false}},
    StorageRow{"QUInt2x4", {DType::kQU2X4, false}},
    StorageRow{"Untyped", {DType::kU8, true}},
};

}  // namespace

Rebuild RebuildOf(const Global& global) {
  for (const RebuildRow& row : kRebuilds) {
    if (row.name == global.name && row.module == global.module) {
      return row.rebuild;
    }
  }
  if (global.name.ends_with("Tensor") &&
      (global.module == "torch" || global.module == "torch.cuda")) {
    return Rebuild::kLegacyClass;
  }
  return Rebuild::kNone;
}

std::optional<StorageClass> StorageClassOf(const Global& global) {
  constexpr std::string_view kSuffix = "Storage";
  if (global.module != "torch" && global.module != "torch.cuda" &&
      global.module != "torch.storage") {
    return std::nullopt;
  }
  if (!global.name.ends_with(kSuffix)) return std::nullopt;
  std::string_view name = global.name;
  name.remove_suffix(kSuffix.size());
  for (const StorageRow& row : kStorages) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

std::optional<DType> DTypeOf(const Global& global) {
  if (global.module != "torch") return std::nullopt;
  return DTypeFromTorchName(global.name);
}

}  // namespace haulway::torch
