// DLPack's structures, as in its dlpack.h: the 0.x tensor, and the versioned
// one of 1.0 that wraps it.

#pragma once

#include <Python.h>

#include <cstdint>
#include <optional>

#include "haulway/dtype.h"

namespace haulway::python {

inline constexpr uint8_t kDlUInt = 1;  // Type codes.
inline constexpr uint8_t kDlBool = 6;
inline constexpr int32_t kDlCpu = 1;

struct DlDevice {
  int32_t type;
  int32_t id;
};
struct DlDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
// Returns nullopt for a type that DLPack lacks.
inline std::optional<DlDataType> DlTypeOf(DType dtype) {
  const DTypeInfo& info = Describe(dtype);
  if (info.dlpack_code < 0) return std::nullopt;
  return DlDataType{static_cast<uint8_t>(info.dlpack_code),
                    static_cast<uint8_t>(8 * info.item_bytes), 1};
}
struct DlTensor {
  void* data;
  DlDevice device;
  int32_t ndim;
  DlDataType dtype;
  int64_t* shape;
  int64_t* strides;
  uint64_t byte_offset;
};
struct DlManagedTensor {
  static constexpr char kCapsule[] = "dltensor";
  DlTensor tensor;
  void* manager;
  void (*deleter)(DlManagedTensor*);
};
struct DlVersion {
  uint32_t major;
  uint32_t minor;
};
inline constexpr uint64_t kDlReadOnly = 1;  // Flags.
inline constexpr uint64_t kDlIsCopied = 2;

struct DlManagedTensorVersioned {
  static constexpr char kCapsule[] = "dltensor_versioned";
  DlVersion version;
  void* manager;
  void (*deleter)(DlManagedTensorVersioned*);
  uint64_t flags;
  DlTensor tensor;
};

// Destructor of a capsule that holds a Managed tensor. A consumer that takes
// the tensor renames the capsule and later calls the tensor's deleter itself.
template <class Managed>
void DeleteCapsule(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, Managed::kCapsule) == 0) return;
  auto* managed =
      static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::kCapsule));
  managed->deleter(managed);
}

}  // namespace haulway::python
