// The names that a pickle may contain, and what Haulway takes each of them for.
//
// A pickle names modules and attributes. Nothing is imported: a name is looked
// up in a table, and a name that is not there is not allowed.

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
  // Plain Python data: a call is evaluated to a Value of that kind immediately.
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
  // Classes and functions of Python and NumPy that only describe data: a call
  // becomes an Object. The first two accept items.
  kDefaultDict,
  kDeque,
  kDataClass,
  // Classes and functions of torch: a call becomes an Object.
  kTensor,        // torch.Tensor, without a dtype.
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
  // For TorchScript archives. Allowed only after
  // GlobalTable::AllowTorchScript().
  kBuildIntList,
  kBuildDoubleList,
  kBuildBoolList,
  kBuildTensorList,
  kBuildTensorFromId,
  kRestoreTypeTag,
  kScriptClass,  // Any name in __torch__.
  // For files of processes of a training. Allowed only after
  // GlobalTable::AllowProcesses().
  kProcessClass,      // Made empty, or of plain items, and given a state.
  kProcessEnum,       // Called with a number.
  kProcessAttribute,  // getattr, of the pairs of IsProcessAttribute() only.
  // Names that are values and cannot be called.
  kDType,           // torch.float32; DTypeOf() returns the dtype.
  kStorage,         // torch.FloatStorage; DTypeOf() returns the dtype.
  kCudaStorage,     // torch.cuda.FloatStorage.
  kTypedStorage,    // torch.storage.TypedStorage.
  kUntypedStorage,  // torch.storage.UntypedStorage.
  kPerTensorAffine,
  kPerTensorSymmetric,
  kPerChannelAffine,
  kPerChannelSymmetric,
  kPerChannelAffineFloatQParams,
  kDataType,  // builtins.int, numpy.float32: a type used as a value.

  kUnknown = 0xFF,  // Not in the table; allowed only if the caller listed it.
};

// Global::id contains a kind and, for some kinds, one detail.
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
inline bool IsCallable(GlobalKind kind) { return kind < GlobalKind::kDType; }

// A module and a name in Python 3's spelling: `__builtin__` becomes `builtins`,
// `torch.tensor` becomes `torch._tensor`. Views of static text or of the
// arguments.
struct GlobalName {
  std::string_view module;
  std::string_view name;
};
GlobalName RenameGlobal(std::string_view module, std::string_view name);

// Returns the module that a program must import before torch.load() accepts
// names of `module`, as it does for tensors of several processes; "" if there
// is none.
std::string_view ImportThatAllows(std::string_view module);

// Returns whether a class of the table of AllowProcesses() has this attribute:
// a class within it, or a member of an enumeration.
bool IsProcessAttribute(const Global& of, std::string_view name);

// A GlobalTable decides which names are allowed. Threads: const methods are
// safe from any number of threads.
class GlobalTable {
 public:
  struct Match {
    uint16_t id = Global::kUnknown;
    bool allowed = false;
  };

  GlobalTable() = default;
  // `also`: more names, as "module.name", that are allowed as data. Names in
  // sys, os, posix and nt are never allowed.
  explicit GlobalTable(std::span<const std::string> also)
      : also_(also.begin(), also.end()) {}

  void AllowTorchScript() { torch_script_ = true; }
  // Allows the classes in the files that processes of torch.distributed and of
  // DeepSpeed write, each as docs/formats/ranks.md lists it.
  void AllowProcesses() { processes_ = true; }

  // Looks up a name in the spelling of RenameGlobal().
  Match Find(std::string_view module, std::string_view name) const;

 private:
  std::unordered_set<std::string> also_;
  bool torch_script_ = false;
  bool processes_ = false;
};

}  // namespace haulway
