// DLPack's structures, as in its dlpack.h: version 0.x, and 1.0 around it.

#pragma once

#include <cstdint>

namespace haulway::python {

enum DlCode : uint8_t {
  kDlInt = 0,
  kDlUInt = 1,
  kDlFloat = 2,
  kDlBfloat = 4,
  kDlComplex = 5,
  kDlBool = 6,
  kDlFloat8E4m3fn = 10,
  kDlFloat8E4m3fnuz = 11,
  kDlFloat8E5m2 = 12,
  kDlFloat8E5m2fnuz = 13,
  kDlFloat8E8m0fnu = 14,
};
inline constexpr int32_t kDlCpu = 1;
inline constexpr int32_t kDlCuda = 2;

struct DlDevice {
  int32_t type;
  int32_t id;
};
struct DlDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};
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

}  // namespace haulway::python
