#include "pickling/array_memory.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string_view>

namespace nb = nanobind;

namespace haulway::python {

namespace {

// The struct of NumPy's array interface, version 3, and one of its flags.
struct ArrayInterface {
  int two;
  int nd;
  char typekind;
  int itemsize;
  int flags;
  Py_intptr_t* shape;
  Py_intptr_t* strides;
  void* data;
  PyObject* descr;
};
constexpr int kNotSwapped = 0x200;

// Finds a dtype by its NumPy name. NumPy and torch use the same names.
const DTypeInfo* TypeNamed(std::string_view name, uint64_t item_bytes) {
  for (const DTypeInfo& info : AllDTypes()) {
    if (info.in_numpy != InNumpy::kNo && info.torch_name == name &&
        info.item_bytes == item_bytes) {
      return &info;
    }
  }
  return nullptr;
}

// The interface of an array, and the capsule that owns it.
struct Interface {
  explicit Interface(const nb::object& array)
      : capsule(array.attr("__array_struct__")),
        fields(static_cast<const ArrayInterface*>(
            PyCapsule_GetPointer(capsule.ptr(), nullptr))) {
    if (fields == nullptr) throw nb::python_error();
  }
  nb::object capsule;
  const ArrayInterface* fields;
};

bool CanBeViewed(const ArrayInterface& array) {
  for (int i = 0; i < array.nd; ++i) {
    if (array.strides[i] < 0 || array.strides[i] % array.itemsize != 0) {
      return false;
    }
  }
  return true;
}

struct Range {
  const std::byte* data;
  uint64_t bytes;
};

// Returns the range of bytes that the array's elements span.
Range RangeOf(const ArrayInterface& array) {
  const auto* first = static_cast<const std::byte*>(array.data);
  uint64_t after = static_cast<uint64_t>(array.itemsize);
  for (int i = 0; i < array.nd; ++i) {
    if (array.shape[i] == 0) return {first, 0};
    const auto steps = array.shape[i] - 1;
    if (array.strides[i] < 0) {
      first += steps * array.strides[i];
      after += static_cast<uint64_t>(steps * -array.strides[i]);
    } else {
      after += static_cast<uint64_t>(steps * array.strides[i]);
    }
  }
  return {first, after};
}

// Finds the object that owns the memory of a view: the buffer below the
// outermost base array, or that array itself.
void FindOwner(const nb::object& array, const nb::object& array_class,
               ArrayFacts* facts) {
  nb::object root = array;
  nb::object base = root.attr("base");
  while (PyObject_IsInstance(base.ptr(), array_class.ptr()) == 1) {
    root = base;
    base = root.attr("base");
  }
  const Range whole = RangeOf(*Interface(root).fields);
  facts->owner = root;
  facts->memory = whole.data;
  facts->memory_bytes = whole.bytes;
  // One buffer can have many memoryviews.
  while (PyMemoryView_Check(base.ptr())) {
    PyObject* under = PyMemoryView_GET_BASE(base.ptr());
    if (under == nullptr) break;
    base = nb::borrow(under);
  }
  // A memory mapping covers its whole file; the owner is then the array, so
  // that only the bytes it spans are saved.
  if (base.is_none() || !PyObject_CheckBuffer(base.ptr()) ||
      std::string_view(Py_TYPE(base.ptr())->tp_name) == "mmap.mmap") {
    return;
  }
  Py_buffer view;
  if (PyObject_GetBuffer(base.ptr(), &view, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    return;
  }
  const auto* data = static_cast<const std::byte*>(view.buf);
  const auto bytes = static_cast<uint64_t>(view.len);
  PyBuffer_Release(&view);
  if (whole.data < data || whole.data + whole.bytes > data + bytes) return;
  facts->owner = base;
  facts->memory = data;
  facts->memory_bytes = bytes;
}

}  // namespace

std::string NameOfDType(PyObject* array) {
  return nb::cast<std::string>(
      nb::str(nb::borrow(array).attr("dtype").attr("name")));
}

ArrayNames::ArrayNames() {
  const nb::object numpy =
      nb::steal(PyImport_GetModule(nb::str("numpy").ptr()));
  if (!numpy.is_valid()) return;
  memmap_ = numpy.attr("memmap");
  generic_ = numpy.attr("generic");
  array_ = numpy.attr("ndarray");
}

ArrayKind ArrayNames::KindOf(PyObject* object) const {
  if (!array_.is_valid()) return ArrayKind::kNeither;
  const auto* type = reinterpret_cast<PyObject*>(Py_TYPE(object));
  if (type == array_.ptr() || type == memmap_.ptr()) return ArrayKind::kArray;
  return PyType_IsSubtype(Py_TYPE(object),
                          reinterpret_cast<PyTypeObject*>(generic_.ptr())) != 0
             ? ArrayKind::kScalar
             : ArrayKind::kNeither;
}

bool ArrayNames::Read(PyObject* given, ArrayFacts* facts) const {
  try {
    nb::object array = nb::borrow(given);
    Interface interface(array);
    facts->type = TypeNamed(NameOfDType(given),
                            static_cast<uint64_t>(interface.fields->itemsize));
    if (facts->type == nullptr) return false;
    if ((interface.fields->flags & kNotSwapped) == 0) {
      array =
          array.attr("astype")(array.attr("dtype").attr("newbyteorder")("="));
      interface = Interface(array);
    }
    if (!CanBeViewed(*interface.fields)) {
      array = array.attr("copy")();
      interface = Interface(array);
    }
    FindOwner(array, array_, facts);
    const auto item = static_cast<ptrdiff_t>(facts->type->item_bytes);
    ptrdiff_t offset =
        static_cast<const std::byte*>(interface.fields->data) - facts->memory;
    if (offset % item != 0) {
      array = array.attr("copy")();
      interface = Interface(array);
      FindOwner(array, array_, facts);
      offset =
          static_cast<const std::byte*>(interface.fields->data) - facts->memory;
    }
    const ArrayInterface& fields = *interface.fields;
    facts->memory_bytes -= facts->memory_bytes % facts->type->item_bytes;
    facts->shape.assign(fields.shape, fields.shape + fields.nd);
    facts->strides.assign(fields.strides, fields.strides + fields.nd);
    for (int64_t& stride : facts->strides) stride /= item;
    // The address of an empty array is meaningless.
    facts->offset = RangeOf(fields).bytes == 0 ? 0 : offset / item;
  } catch (nb::python_error& error) {
    error.restore();
    return false;
  }
  return true;
}

}  // namespace haulway::python
