// What the names in a torch pickle stand for.

#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "haulway/dtype.h"
#include "haulway/tree.h"

namespace haulway::torch {

// The functions that torch's pickles call to make tensors (spec 3.6).
enum class Rebuild : uint8_t {
  kNone,                // Not one of these.
  kTensor,              // _rebuild_tensor, before 0.4
  kTensorV2,            // _rebuild_tensor_v2
  kTensorV3,            // _rebuild_tensor_v3: untyped storage and a dtype
  kParameter,           // _rebuild_parameter
  kParameterWithState,  // _rebuild_parameter_with_state
  kQuantized,           // _rebuild_qtensor
  kSparse,              // _rebuild_sparse_tensor
  kMeta,                // _rebuild_meta_tensor_no_storage
  kNested,              // _rebuild_nested_tensor
  kWrapperSubclass,     // _rebuild_wrapper_subclass
  kDeviceFromCpu,       // _rebuild_device_tensor_from_cpu_tensor
  kFromType,            // _rebuild_from_type_v2 and _rebuild_from_type
  kLegacyClass,         // torch.FloatTensor and the like, with BUILD
};

Rebuild RebuildOf(const Global& global);

// A storage class: torch.FloatStorage, torch.cuda.HalfStorage,
// torch.storage.UntypedStorage.
struct StorageClass {
  DType dtype = DType::kU8;
  bool untyped = false;
};
std::optional<StorageClass> StorageClassOf(const Global& global);

// torch.float8_e4m3fn and the like.
std::optional<DType> DTypeOf(const Global& global);

}  // namespace haulway::torch
