#include <fmt/format.h>

#include "pickling/object_walker.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Names of torch, written while torch is not imported.
constexpr char kRebuildV2[] = "_rebuild_tensor_v2";
constexpr char kRebuildV3[] = "_rebuild_tensor_v3";
constexpr char kUntyped[] = "UntypedStorage";

}  // namespace

// Looks a torch name up. If torch is imported, the object itself is used, so
// that tensors elsewhere in the pickle share its memo entry.
bool ObjectWalker::TorchName(const char* module, const char* name,
                             WrittenName* written) {
  *written = {nullptr, module, name, name};
  if (!torch_.is_loaded()) return true;
  const nb::object imported = nb::steal(PyImport_ImportModule(module));
  if (!imported.is_valid()) return false;
  const nb::object object =
      nb::steal(PyObject_GetAttrString(imported.ptr(), name));
  // The module keeps the object alive.
  written->object = object.ptr();
  written->id = object.ptr();
  return object.is_valid();
}

bool ObjectWalker::PlaceArray(PyObject* array, uint64_t unit_bytes,
                              WrittenTensor* tensor) {
  const ArrayFacts& facts = array_facts_;
  const uint64_t item_bytes = facts.type->item_bytes;
  const std::pair key(facts.owner.ptr(), facts.type);
  if (survey_ != nullptr) {
    const auto surveyed = survey_->array_rows_.find(key);
    const auto copy = [&](PickledStorage* dense) {
      ArrayFacts copied;
      const nb::object made =
          nb::steal(PyObject_CallMethod(array, "copy", nullptr));
      if (!made.is_valid() || !arrays_.Read(made.ptr(), &copied)) return false;
      *dense = {copied.owner, cpu_, copied.memory, copied.memory_bytes};
      return true;
    };
    bool placed = false;
    if (surveyed != survey_->array_rows_.end() &&
        !PlaceInCut(surveyed->second, item_bytes, unit_bytes, copy, tensor,
                    &placed)) {
      return false;
    }
    if (placed) return true;
  }
  const auto [known, is_new] = array_rows_.emplace(key, storages_.size());
  tensor->row = known->second;
  tensor->count = facts.memory_bytes / unit_bytes;
  if (is_new) {
    storages_.push_back({facts.owner, cpu_, facts.memory, facts.memory_bytes});
    notes_.push_back({nullptr, PickleMemo::kNone, false});
  }
  if (options_.compact) {
    plan_.AddView(tensor->row, static_cast<uint64_t>(facts.offset) * item_bytes,
                  item_bytes, tensor->shape, tensor->strides);
  }
  return true;
}

ObjectWalker::Outcome ObjectWalker::SaveArray(PyObject* object) {
  const ArrayKind kind = arrays_.KindOf(object);
  if (kind == ArrayKind::kNeither) return Outcome::kNotMine;
  if (kind == ArrayKind::kScalar) {
    const nb::object item =
        nb::steal(PyObject_CallMethod(object, "item", nullptr));
    if (!item.is_valid()) return Outcome::kFailed;
    PyTypeObject* type = Py_TYPE(item.ptr());
    const bool is_plain = type == &PyBool_Type || type == &PyLong_Type ||
                          type == &PyFloat_Type || type == &PyComplex_Type ||
                          type == &PyUnicode_Type || type == &PyBytes_Type;
    if (!is_plain) return Outcome::kNotMine;
    return Save(item.ptr()) ? Outcome::kDone : Outcome::kFailed;
  }

  ArrayFacts& facts = array_facts_;
  if (!arrays_.Read(object, &facts)) {
    if (PyErr_Occurred() == nullptr) {
      Refuse(fmt::format("NumPy array of dtype {}", NameOfDType(object)));
    }
    return Outcome::kFailed;
  }
  const DTypeInfo& type = *facts.type;
  const bool is_v3 = type.storage_class.empty();
  WrittenTensor tensor;
  if (!TorchName("torch._utils", is_v3 ? kRebuildV3 : kRebuildV2,
                 &tensor.rebuild) ||
      !TorchName(is_v3 ? "torch.storage" : "torch",
                 is_v3 ? kUntyped : type.storage_class.data(),
                 &tensor.storage_class) ||
      (is_v3 && !TorchName("torch", type.torch_name.data(), &tensor.dtype))) {
    return Outcome::kFailed;
  }
  tensor.offset = facts.offset;
  tensor.shape = facts.shape;
  tensor.strides = facts.strides;
  if (!PlaceArray(object, is_v3 ? 1 : type.item_bytes, &tensor)) {
    return Outcome::kFailed;
  }
  if (!WriteTensor(tensor)) return Outcome::kFailed;
  Put(object);
  return Outcome::kDone;
}

}  // namespace haulway::python
