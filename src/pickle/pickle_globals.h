// The names that may stand in a pickle, and what each of them means to us.
//
// A pickle names modules and attributes. Nothing is imported: a name is looked
// up here, and one that is not here is not allowed.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>

#include "haulway/dtype.h"
#include "haulway/tree.h"

namespace haulway {

enum class GlobalKind : uint8_t {
  // Plain Python data: a call of one becomes a Value of that kind at once.
  kOrderedDict,
  kCounter,
  kDict,
  kList,
  kTuple,
  kSet,
  kFrozenSet,
  kBytes,
  kByteArray,
  kComplex,
  kCodecsEncode,
  // Classes and functions of Python and NumPy that describe data and no more:
  // a call of one becomes an Object. These two take items.
  kDefaultDict,
  kDeque,
  kDataClass,
  // Classes and functions of torch: a call of one becomes an Object.
  kTensor,        // torch.Tensor, of no dtype.
  kLegacyTensor,  // torch[.cuda][.sparse].FloatTensor; see IsSparse().
  kParameter,
  kSize,
  kDevice,
  kGetLayout,
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kRebuildParameterWithState,
  kRebuildQTensor,
  kRebuildSparseTensor,
  kRebuildMetaTensor,
  kRebuildNestedTensor,
  kRebuildWrapperSubclass,
  kRebuildDeviceTensorFromCpu,
  kRebuildDeviceTensorFromNumpy,
  kRebuildFromType,
  kRebuildFromTypeV2,
  // For TorchScript archives; allowed only by GlobalTable::AllowTorchScript().
  kBuildIntList,
  kBuildDoubleList,
  kBuildBoolList,
  kBuildTensorList,
  kBuildTensorFromId,
  kRestoreTypeTag,
  kScriptClass,  // Any name below __torch__.
  // Names that are values, and cannot be called.
  kDType,           // torch.float32; DTypeOf() says which.
  kStorage,         // torch.FloatStorage; DTypeOf() says of what.
  kCudaStorage,     // torch.cuda.FloatStorage.
  kTypedStorage,    // torch.storage.TypedStorage.
  kUntypedStorage,  // torch.storage.UntypedStorage.
  kPerTensorAffine,
  kPerTensorSymmetric,
  kPerChannelAffine,
  kPerChannelSymmetric,
  kPerChannelAffineFloatQParams,
  kDataType,  // builtins.int, numpy.float32: named, as a type.

  kUnknown = 0xFF,  // Not in the table; allowed only if the caller said so.
};

// What Global::id holds: a kind, and for some kinds one detail.
inline GlobalKind KindOf(uint16_t id) {
  return static_cast<GlobalKind>(id & 0xFF);
}
inline GlobalKind KindOf(const Global& global) { return KindOf(global.id); }
// For kDType, kStorage, kCudaStorage and kLegacyTensor.
inline DType DTypeOf(const Global& global) {
  return static_cast<DType>((global.id >> 8) & 0x3F);
}
// For kLegacyTensor: torch.sparse.FloatTensor, torch.cuda.FloatTensor.
inline bool IsSparse(const Global& global) { return (global.id & 0x4000) != 0; }
inline bool IsCuda(const Global& global) { return (global.id & 0x8000) != 0; }
inline bool IsCallable(GlobalKind kind) { return kind < GlobalKind::kDType; }

// A module and a name as Python 3 spells them: `__builtin__` is `builtins`,
// `torch.tensor` is `torch._tensor`. Views of static text or of the arguments.
struct GlobalName {
  std::string_view module;
  std::string_view name;
};
GlobalName RenameGlobal(std::string_view module, std::string_view name);

// Threads: const access is safe from many threads.
class GlobalTable {
 public:
  struct Match {
    uint16_t id = Global::kUnknown;
    bool allowed = false;
  };

  GlobalTable() = default;
  // `also`: further names, "module.name", that are allowed as data. Names in
  // sys, os, posix and nt are never allowed.
  explicit GlobalTable(std::span<const std::string> also)
      : also_(also.begin(), also.end()) {}

  void AllowTorchScript() { torch_script_ = true; }

  // Looks up a name after RenameGlobal().
  Match Find(std::string_view module, std::string_view name) const;

 private:
  std::unordered_set<std::string> also_;
  bool torch_script_ = false;
};

}  // namespace haulway
