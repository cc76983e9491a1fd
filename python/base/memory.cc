#include "base/memory.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/dlpack.h"
#include "base/dlpack_tensor.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// A tensor that a consumer holds. The shape is stored directly after the
// struct.
struct Owner {
  DlManagedTensor managed;
  Buffer bytes;

  int64_t* shape() { return reinterpret_cast<int64_t*>(this + 1); }
  static Owner* Make(size_t rank) {
    return new (::operator new(sizeof(Owner) + rank * sizeof(int64_t))) Owner();
  }
  static void Drop(Owner* owner) {
    owner->~Owner();
    ::operator delete(owner);
  }
};
static_assert(alignof(Owner) == alignof(int64_t));

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
  BindDlpackTensor(module);
  nb::class_<Memory>(module, "Memory", nb::type_slots(slots))
      .def_prop_ro("nbytes",
                   [](const Memory& self) { return self.bytes.size(); })
      .def_prop_ro("readonly",
                   [](const Memory& self) { return !self.bytes.writable(); })
      // Returns the same bytes marked writable, for frameworks that have no
      // read-only tensors. Requires: a write to the bytes does no harm.
      .def("as_writable",
           [](const Memory& self) {
             const std::span bytes(const_cast<std::byte*>(self.bytes.data()),
                                   self.bytes.size());
             return MakeMemory(Buffer(self.bytes.owner(), bytes, true));
           })
      // Calls `from_dlpack` with a "dltensor" capsule of all bytes and returns
      // its result, which keeps the bytes (but not this object) alive.
      .def("lend",
           [](const Memory& self, nb::object from_dlpack) {
             const auto size = static_cast<int64_t>(self.bytes.size());
             return DlpackLender(std::move(from_dlpack))
                 .Lend(self.bytes, DType::kU8, {&size, 1});
           })
      // Returns a DlpackTensor over the bytes; see MakeDlpackTensor().
      .def("tensor", [](const Memory& self, const std::string& dtype,
                        std::vector<int64_t> shape,
                        std::vector<int64_t> strides, int64_t offset) {
        const auto type = DTypeFromName(dtype);
        if (!type.has_value()) throw nb::value_error("no such dtype");
        return MakeDlpackTensor(self.bytes, *type, std::move(shape),
                                std::move(strides), offset);
      });
}

nb::object MakeMemory(Buffer bytes) {
  return nb::cast(Memory{std::move(bytes)});
}

nb::object DlpackLender::Lend(Buffer bytes, DType dtype,
                              std::span<const int64_t> shape) {
  const auto type = DlTypeOf(dtype);
  // Higher type codes are from DLPack 1.1, which not every torch release
  // accepts.
  if (!type.has_value() || type->code > kDlBool) return nb::object();
  std::unique_ptr<Owner, void (*)(Owner*)> owner(Owner::Make(shape.size()),
                                                 &Owner::Drop);
  owner->bytes = std::move(bytes);
  std::ranges::copy(shape, owner->shape());
  owner->managed.tensor = {
      .data = owner->bytes.mutable_bytes().data(),
      .device = {kDlCpu, 0},
      .ndim = static_cast<int32_t>(shape.size()),
      .dtype = *type,
      .shape = owner->shape(),
      .strides = nullptr,  // Dense and row-major.
      .byte_offset = 0,
  };
  owner->managed.manager = owner.get();
  owner->managed.deleter = [](DlManagedTensor* managed) {
    Owner::Drop(static_cast<Owner*>(managed->manager));
  };
  if (!capsule_.is_valid()) {
    PyObject* const made =
        PyCapsule_New(&owner->managed, DlManagedTensor::kCapsule,
                      DeleteCapsule<DlManagedTensor>);
    if (made == nullptr) throw nb::python_error();
    capsule_ = nb::steal(made);
  } else if (PyCapsule_SetPointer(capsule_.ptr(), &owner->managed) != 0 ||
             PyCapsule_SetName(capsule_.ptr(), DlManagedTensor::kCapsule) !=
                 0) {
    throw nb::python_error();
  }
  (void)owner.release();  // Owned by the capsule until a consumer takes it.
  PyObject* const taken =
      PyObject_CallOneArg(from_dlpack_.ptr(), capsule_.ptr());
  // If the consumer did not take the tensor, the capsule's destructor frees it.
  if (taken == nullptr) {
    capsule_.reset();
    throw nb::python_error();
  }
  if (PyCapsule_IsValid(capsule_.ptr(), DlManagedTensor::kCapsule) != 0) {
    capsule_.reset();
  }
  return nb::steal(taken);
}

}  // namespace haulway::python
