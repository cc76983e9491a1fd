#include "pickling/torch_names.h"

#include <cstddef>
#include <utility>

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Torch has fewer dtypes. Space for this many is reserved, so that rows never
// move.
constexpr size_t kMostDTypes = 256;

// Reads a property that was found on a type, without another lookup.
nb::object Get(const nb::object& property, PyObject* object) {
  const descrgetfunc get = Py_TYPE(property.ptr())->tp_descr_get;
  return nb::steal(get(property.ptr(), object,
                       reinterpret_cast<PyObject*>(Py_TYPE(object))));
}

nb::object Call(const nb::object& method, PyObject* object) {
  return nb::steal(PyObject_CallOneArg(method.ptr(), object));
}

bool GetUnsigned(const nb::object& number, uint64_t* value) {
  if (!number.is_valid()) return false;
  *value = PyLong_AsUnsignedLongLong(number.ptr());
  return *value != ~uint64_t{0} || PyErr_Occurred() == nullptr;
}

bool GetIntegers(PyObject* tuple, std::vector<int64_t>* values) {
  if (!PyTuple_Check(tuple)) return false;
  const auto count = static_cast<size_t>(PyTuple_GET_SIZE(tuple));
  values->resize(count);
  for (size_t i = 0; i < count; ++i) {
    PyObject* item = PyTuple_GET_ITEM(tuple, static_cast<Py_ssize_t>(i));
    // A symbolic size is not an int.
    if (!PyLong_CheckExact(item)) return false;
    (*values)[i] = PyLong_AsLongLong(item);
  }
  return true;
}

// Most properties raise RuntimeError for a tensor that is not plain.
TensorKind OtherOrFailed() {
  if (PyErr_Occurred() == nullptr) return TensorKind::kOther;
  if (!PyErr_ExceptionMatches(PyExc_RuntimeError)) return TensorKind::kFailed;
  PyErr_Clear();
  return TensorKind::kOther;
}

}  // namespace

TorchNames::TorchNames() {
  torch_ = nb::steal(PyImport_GetModule(nb::str("torch").ptr()));
  if (!torch_.is_valid()) return;
  try {
    ok_ = Load();
  } catch (nb::python_error& error) {
    error.restore();
    ok_ = false;
  }
}

bool TorchNames::Load() {
  rows_.reserve(kMostDTypes);
  const nb::object tensor = torch_.attr("Tensor");
  is_cpu_ = tensor.attr("is_cpu");
  dtype_ = tensor.attr("dtype");
  shape_ = tensor.attr("shape");
  stride_ = tensor.attr("stride");
  storage_offset_ = tensor.attr("storage_offset");
  requires_grad_ = tensor.attr("requires_grad");
  is_neg_ = tensor.attr("is_neg");
  is_conj_ = tensor.attr("is_conj");
  untyped_storage_ = tensor.attr("untyped_storage");
  const nb::object storage = torch_.attr("storage");
  untyped_class_ = torch_.attr("UntypedStorage");
  typed_class_ = storage.attr("TypedStorage");
  is_storage_ = torch_.attr("is_storage");
  nbytes_ = untyped_class_.attr("nbytes");
  data_ptr_ = untyped_class_.attr("data_ptr");
  uint8_ = torch_.attr("uint8");
  location_tag_ = torch_.attr("serialization").attr("location_tag");

  const nb::object names = nb::module_::import_("haulway._importing")
                               .attr("imported")("haulway._torch.private")
                               .attr("for_pickling")();
  backward_hooks_ = names.attr("backward_hooks");
  identity_ = names.attr("identity");
  rebuild_v2_ = names.attr("rebuild_v2");
  rebuild_v3_ = names.attr("rebuild_v3");
  rebuild_parameter_ = names.attr("rebuild_parameter");
  storage_names_ = names.attr("storage_names");
  dtypes_of_bytes_ = names.attr("dtypes_of_bytes");
  parts_of_storage_ = names.attr("parts_of_storage");
  fake_device_ = names.attr("fake_device");
  if (nb::cast<bool>(names.attr("tags_cpu_first"))) {
    cpu_tag_ = nb::steal(PyUnicode_InternFromString("cpu"));
  }
  for (const nb::object* property :
       {&is_cpu_, &dtype_, &shape_, &requires_grad_, &backward_hooks_,
        &identity_}) {
    if (Py_TYPE(property->ptr())->tp_descr_get == nullptr) {
      PyErr_SetString(PyExc_RuntimeError,
                      "this release of torch has no property that pickling "
                      "reads");
      return false;
    }
  }
  parameter_ = torch_.attr("nn").attr("Parameter");
  tensor_ = tensor;
  return true;
}

const DTypeRow* TorchNames::RowOf(PyObject* dtype) {
  if (last_row_ != nullptr && last_row_->dtype.ptr() == dtype) {
    return last_row_;
  }
  for (const DTypeRow& row : rows_) {
    if (row.dtype.ptr() == dtype) return last_row_ = &row;
  }
  if (rows_.size() == kMostDTypes) return nullptr;
  try {
    DTypeRow row;
    row.dtype = nb::borrow(dtype);
    row.is_complex = nb::cast<bool>(row.dtype.attr("is_complex"));
    row.element_bytes = nb::cast<uint64_t>(row.dtype.attr("itemsize"));
    const int is_new = PySet_Contains(dtypes_of_bytes_.ptr(), dtype);
    if (is_new < 0) return nullptr;
    PyObject* name = PyDict_GetItemWithError(storage_names_.ptr(), dtype);
    if (is_new == 1) {
      row.is_plain = row.is_v3 = true;
      row.storage_class = untyped_class_;
      row.stored_as = uint8_;
    } else if (name != nullptr) {
      row.storage_class = nb::steal(PyObject_GetAttr(torch_.ptr(), name));
      if (!row.storage_class.is_valid()) return nullptr;
      row.stored_as = row.dtype;
      row.item_bytes = row.element_bytes;
      // QInt8Storage and the like: quantized tensors have more state.
      row.is_plain = PyUnicode_ReadChar(name, 0) != 'Q';
    } else if (PyErr_Occurred() != nullptr) {
      return nullptr;
    }
    rows_.push_back(std::move(row));
  } catch (nb::python_error& error) {
    error.restore();
    return nullptr;
  }
  return last_row_ = &rows_.back();
}

TensorKind TorchNames::Read(PyObject* tensor, TensorFacts* facts) {
  {
    const nb::ft_object_guard guard(tensor);
    PyObject** attributes = _PyObject_GetDictPtr(tensor);
    if (attributes != nullptr && *attributes != nullptr &&
        PyDict_GET_SIZE(*attributes) != 0) {
      return TensorKind::kOther;
    }
  }
  if (Get(is_cpu_, tensor).ptr() != Py_True) return OtherOrFailed();
  const nb::object dtype = Get(dtype_, tensor);
  if (!dtype.is_valid()) return OtherOrFailed();
  facts->dtype = RowOf(dtype.ptr());
  if (facts->dtype == nullptr) return OtherOrFailed();
  if (!facts->dtype->is_plain) return TensorKind::kOther;
  // Sparse tensors have no storage, nested ones no shape.
  facts->storage = Call(untyped_storage_, tensor);
  if (!facts->storage.is_valid()) return OtherOrFailed();
  if (Call(is_neg_, tensor).ptr() != Py_False) return OtherOrFailed();
  if (facts->dtype->is_complex && Call(is_conj_, tensor).ptr() != Py_False) {
    return OtherOrFailed();
  }
  const nb::object shape = Get(shape_, tensor);
  if (!shape.is_valid() || !GetIntegers(shape.ptr(), &facts->shape)) {
    return OtherOrFailed();
  }
  const nb::object strides = Call(stride_, tensor);
  if (!strides.is_valid() || !GetIntegers(strides.ptr(), &facts->strides)) {
    return OtherOrFailed();
  }
  const nb::object offset = Call(storage_offset_, tensor);
  if (!offset.is_valid() || !PyLong_CheckExact(offset.ptr())) {
    return OtherOrFailed();
  }
  facts->offset = PyLong_AsLongLong(offset.ptr());
  const nb::object requires_grad = Get(requires_grad_, tensor);
  if (!requires_grad.is_valid()) return OtherOrFailed();
  facts->requires_grad = requires_grad.ptr() == Py_True;
  if (facts->requires_grad && !Get(backward_hooks_, tensor).is_none()) {
    return OtherOrFailed();
  }
  return TensorKind::kPlain;
}

StorageKind TorchNames::StorageKindOf(PyObject* object) const {
  const int typed = PyObject_IsInstance(object, typed_class_.ptr());
  if (typed != 0) return typed == 1 ? StorageKind::kTyped : StorageKind::kNone;
  const nb::object is = Call(is_storage_, object);
  return is.ptr() == Py_True ? StorageKind::kUntyped : StorageKind::kNone;
}

bool TorchNames::StorageAddress(PyObject* storage, uint64_t* identity,
                                uint64_t* nbytes,
                                const std::byte** data) const {
  uint64_t address = 0;
  if (!GetUnsigned(Get(identity_, storage), identity) ||
      !GetUnsigned(Call(nbytes_, storage), nbytes) ||
      !GetUnsigned(Call(data_ptr_, storage), &address)) {
    return false;
  }
  *data = reinterpret_cast<const std::byte*>(address);
  return true;
}

}  // namespace haulway::python
