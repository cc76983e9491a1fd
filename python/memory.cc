#include "memory.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dlpack.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

struct Owner {
  DlManagedTensor managed;
  Buffer bytes;
  std::vector<int64_t> shape;
};

std::optional<DlDataType> DlTypeOf(DType dtype) {
  const auto type = [&](DlCode code) {
    return DlDataType{code, static_cast<uint8_t>(8 * ItemBytes(dtype)), 1};
  };
  switch (dtype) {
    case DType::kF64:
    case DType::kF32:
    case DType::kF16:
      return type(kDlFloat);
    case DType::kBF16:
      return type(kDlBfloat);
    case DType::kI64:
    case DType::kI32:
    case DType::kI16:
    case DType::kI8:
      return type(kDlInt);
    case DType::kU64:
    case DType::kU32:
    case DType::kU16:
    case DType::kU8:
      return type(kDlUInt);
    case DType::kBool:
      return type(kDlBool);
    case DType::kC64:
    case DType::kC128:
      return type(kDlComplex);
    default:
      return std::nullopt;
  }
}

void DeleteCapsule(PyObject* capsule) {
  // A consumer renames the capsule and then deletes the tensor itself.
  if (PyCapsule_IsValid(capsule, DlManagedTensor::kCapsule) == 0) return;
  auto* managed = static_cast<DlManagedTensor*>(
      PyCapsule_GetPointer(capsule, DlManagedTensor::kCapsule));
  managed->deleter(managed);
}

struct Memory {
  Buffer bytes;
};

int GetBuffer(PyObject* self, Py_buffer* view, int flags) {
  const Memory& memory = *nb::inst_ptr<Memory>(self);
  return PyBuffer_FillInfo(view, self,
                           const_cast<std::byte*>(memory.bytes.data()),
                           static_cast<Py_ssize_t>(memory.bytes.size()),
                           memory.bytes.writable() ? 0 : 1, flags);
}

}  // namespace

void BindMemory(nb::module_& module) {
  static PyType_Slot slots[] = {
      {Py_bf_getbuffer, reinterpret_cast<void*>(GetBuffer)}, {0, nullptr}};
  nb::class_<Memory>(module, "Memory", nb::type_slots(slots))
      .def_prop_ro("nbytes",
                   [](const Memory& self) { return self.bytes.size(); });
}

nb::object MakeMemory(Buffer bytes) {
  return nb::cast(Memory{std::move(bytes)});
}

PyObject* MakeDlpackCapsule(Buffer bytes, DType dtype,
                            std::span<const int64_t> shape) {
  const auto type = DlTypeOf(dtype);
  if (!type.has_value()) return nullptr;
  auto owner = std::make_unique<Owner>();
  owner->bytes = std::move(bytes);
  owner->shape.assign(shape.begin(), shape.end());
  owner->managed.tensor = {
      .data = owner->bytes.mutable_bytes().data(),
      .device = {kDlCpu, 0},
      .ndim = static_cast<int32_t>(owner->shape.size()),
      .dtype = *type,
      .shape = owner->shape.data(),
      .strides = nullptr,  // Dense and row-major.
      .byte_offset = 0,
  };
  owner->managed.manager = owner.get();
  owner->managed.deleter = [](DlManagedTensor* managed) {
    delete static_cast<Owner*>(managed->manager);
  };
  PyObject* capsule =
      PyCapsule_New(&owner->managed, DlManagedTensor::kCapsule, DeleteCapsule);
  if (capsule != nullptr) (void)owner.release();
  return capsule;
}

}  // namespace haulway::python
