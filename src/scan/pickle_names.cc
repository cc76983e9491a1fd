#include "scan/pickle_names.h"

#include <algorithm>
#include <array>

namespace haulway::scan {

namespace {

struct Row {
  std::string_view module;
  std::string_view name;
};

constexpr Row kData[] = {
    // joblib writes an array between the opcodes; this wrapper describes it.
    {"joblib.numpy_pickle", "NumpyArrayWrapper"},
    // The base class argument of _reconstructor below, and a 128-bit number.
    {"builtins", "object"},
    {"uuid", "UUID"},
    // These create an object of the class in their arguments: at protocols 0
    // and 1, and at 2 if the NEWOBJ opcode is not used.
    {"copyreg", "_reconstructor"},
    {"copyreg", "__newobj__"},
    // A nested tensor with its class and bounds. torch.load(weights_only=True)
    // allows them.
    {"torch.nested._internal.nested_tensor", "_rebuild_njt"},
    {"torch.nested._internal.nested_tensor", "NestedTensor"},
    {"torch._dynamo.decorators", "_DimRange"},
    // The classes in the .metadata file of a distributed checkpoint.
    {"torch.distributed.checkpoint.metadata", "Metadata"},
    {"torch.distributed.checkpoint.metadata", "MetadataIndex"},
    {"torch.distributed.checkpoint.metadata", "BytesStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "ChunkStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "StorageMeta"},
    {"torch.distributed.checkpoint.metadata", "TensorProperties"},
    {"torch.distributed.checkpoint.metadata", "TensorStorageMetadata"},
    {"torch.distributed.checkpoint.metadata", "_MEM_FORMAT_ENCODING"},
    {"torch.distributed.checkpoint.filesystem", "_StorageInfo"},
    // What Megatron keeps there of its plan of saving.
    {"torch.distributed.checkpoint.planner", "SavePlan"},
    {"torch.distributed.checkpoint.planner", "WriteItem"},
    {"torch.distributed.checkpoint.planner", "WriteItemType"},
    {"torch.distributed.checkpoint.planner", "TensorWriteData"},
    // The part of a tensor that one of several processes holds. torch's default
    // allows them once torch.distributed.tensor is imported.
    {"torch.distributed.tensor", "DTensor"},
    {"torch.distributed.tensor._dtensor_spec", "DTensorSpec"},
    {"torch.distributed.tensor._dtensor_spec", "ShardOrderEntry"},
    {"torch.distributed.tensor._dtensor_spec", "TensorMeta"},
    {"torch.distributed.tensor.placement_types", "Partial"},
    {"torch.distributed.tensor.placement_types", "Replicate"},
    {"torch.distributed.tensor.placement_types", "Shard"},
    {"torch.distributed.tensor.placement_types", "_StridedShard"},
    {"torch.distributed.device_mesh", "DeviceMesh"},
    {"torch.distributed._mesh_layout", "_FlatLayout"},
    {"torch.distributed._mesh_layout", "_MeshLayout"},
};

// Number types. Calling them converts a value (Care::kNumber).
constexpr std::string_view kNumpyNumbers[] = {
    "bool",    "bool_",      "int8",       "int16",    "int32",     "int64",
    "uint8",   "uint16",     "uint32",     "uint64",   "float16",   "float32",
    "float64", "complex64",  "complex128", "longlong", "ulonglong", "str_",
    "bytes_",  "datetime64", "timedelta64"};

bool IsNumpyNumber(std::string_view module, std::string_view name) {
  return module == "numpy" &&
         std::ranges::find(kNumpyNumbers, name) != std::end(kNumpyNumbers);
}

struct CareRow {
  std::string_view module;
  std::string_view name;
  Care care;
};

constexpr CareRow kCares[] = {
    {"_codecs", "encode", Care::kCodec},
    {"builtins", "bytearray", Care::kCodec},
    {"builtins", "bytes", Care::kCodec},
    {"builtins", "str", Care::kCodec},
    {"numpy", "bytes_", Care::kCodec},
    {"numpy", "str_", Care::kCodec},
    {"copyreg", "__newobj__", Care::kMakes},
    {"copyreg", "_reconstructor", Care::kMakes},
    {"torch._tensor", "_rebuild_from_type", Care::kRebuilds},
    {"torch._tensor", "_rebuild_from_type_v2", Care::kRebuilds},
    {"torch.jit._pickle", "build_boollist", Care::kSame},
    {"torch.jit._pickle", "build_doublelist", Care::kSame},
    {"torch.jit._pickle", "build_intlist", Care::kSame},
    {"torch.jit._pickle", "build_tensor_from_id", Care::kSame},
    {"torch.jit._pickle", "build_tensorlist", Care::kSame},
    {"torch.jit._pickle", "restore_type_tag", Care::kSame},
};

}  // namespace

Care CareOf(std::string_view module, std::string_view name) {
  for (const CareRow& row : kCares) {
    if (row.name == name && row.module == module) return row.care;
  }
  if (!ImportThatAllows(module).empty()) return Care::kEmpty;
  return IsNumpyNumber(module, name) ? Care::kNumber : Care::kNone;
}

bool IsEnumeration(std::string_view module, std::string_view name) {
  return (module == "torch.distributed.checkpoint.metadata" &&
          name == "_MEM_FORMAT_ENCODING") ||
         (module == "torch.distributed.checkpoint.planner" &&
          name == "WriteItemType");
}

bool PickleNames::Allows(std::string_view module, std::string_view name) const {
  if (table_.Find(module, name).allowed || IsNumpyNumber(module, name)) {
    return true;
  }
  return std::ranges::any_of(kData, [&](const Row& row) {
    return row.name == name && row.module == module;
  });
}

bool PickleNames::IsCallers(std::string_view module,
                            std::string_view name) const {
  const GlobalTable::Match match = table_.Find(module, name);
  return match.allowed && match.id == Global::kUnknown;
}

}  // namespace haulway::scan
