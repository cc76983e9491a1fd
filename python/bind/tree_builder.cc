// Design: the value tree becomes Python objects in one walk. A table from
// identities to objects keeps shared objects shared and cycles intact. Dicts,
// lists and numbers are made here by the C API; tensors are made from their
// rows by a factory in Python, the only part that knows torch and NumPy. The
// recursion uses the C stack; the parser has bounded its depth.
//
// Building the tree in Python would take several calls per value, and a model
// has a hundred thousand values. Objects that only code could make are
// described (OpaqueObject), never made.

#include "bind/tree_builder.h"

#include <cassert>
#include <utility>

#include "base/errors.h"
#include "base/memory.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Every NumPy release accepts this many; the factory handles more.
constexpr size_t kMostDimensions = 32;

nb::object Steal(PyObject* object) {
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

nb::object PickleText(std::string_view text) {
  return Steal(PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "surrogatepass"));
}

void Check(int result) {
  if (result != 0) throw nb::python_error();
}

nb::object BigInt(std::string_view bytes) {
  const nb::handle number(reinterpret_cast<PyObject*>(&PyLong_Type));
  return number.attr("from_bytes")(nb::bytes(bytes.data(), bytes.size()),
                                   "little", nb::arg("signed") = true);
}

// Only dense tensors are made by BuildTensor() from a row alone; others have
// parts (scales, a type, attributes) that the factory must see.
bool IsDense(const CheckpointIndex& index, uint32_t row) {
  const TensorInfo& tensor = index.tensors[row];
  return tensor.kind == TensorKind::kDense ||
         (tensor.kind == TensorKind::kMeta && tensor.storage != kNoStorage);
}

bool IsPlainRebuild(const Object& object) {
  if (object.callable == nullptr) return false;
  const std::string_view name = object.callable->name;
  return name == "_rebuild_tensor_v2" || name == "_rebuild_tensor_v3" ||
         name == "_rebuild_tensor" ||
         (!name.starts_with("_rebuild") && name.ends_with("Tensor"));
}

// A torch tensor is hashable and can be a key or in a set; its replacement here
// may not be.
void CheckHashed(bool is_done) {
  if (is_done) return;
  if (PyErr_ExceptionMatches(PyExc_TypeError) == 0) throw nb::python_error();
  PyErr_Clear();
  Raise(Status(Code::kUnsupported,
               "a key of a dict, or an item of a set, is a tensor, which only "
               "torch's can be"));
}

// Returns the name at the bottom of a chain of calls: a call may call what
// another call returned.
const Global* NameOf(const Object& object) {
  const Object* outer = &object;
  while (outer->callable == nullptr && outer->called.is(Kind::kObject)) {
    outer = &outer->called.object();
  }
  if (outer->callable != nullptr) return outer->callable;
  Raise(Status(Code::kUnsafe, "a call of something that is no name")
            .At(object.byte));
}

}  // namespace

bool IsRowMajor(const TensorInfo& tensor) {
  int64_t dense = 1;
  for (size_t d = tensor.shape.size(); d-- > 0;) {
    if (tensor.strides[d] != dense) return false;
    dense *= tensor.shape[d];
  }
  return true;
}

void CheckObject(const Checkpoint& checkpoint) {
  const Status& status = checkpoint.index().object_status;
  if (status.ok()) return;
  Raise(status,
        "only code could make the object, and none is run: allow what you "
        "trust with safe_globals or --allow, or take the tensors alone with "
        "haulway.open()");
}

TreeBuilder::TreeBuilder(const Checkpoint& checkpoint, nb::object factory,
                         Options options)
    : index_(checkpoint.index()),
      factory_(std::move(factory)),
      options_(std::move(options)),
      lender_(options_.from_dlpack),
      bases_(index_.storages.size()) {
  const nb::module_ collections = nb::module_::import_("collections");
  if (!nb::cast<bool>(
          nb::getattr(factory_, "keeps_opaque", nb::bool_(false)))) {
    CheckObject(checkpoint);
  }
  counter_ = collections.attr("Counter");
  ordered_dict_ = collections.attr("OrderedDict");
  const nb::object arrays = nb::getattr(factory_, "arrays", nb::none());
  if (arrays.is_none()) return;
  assert(PyList_CheckExact(nb::object(arrays[2]).ptr()) &&
         nb::len(nb::object(arrays[2])) == index_.storages.size());
  array_type_ = arrays[0];
  dtype_named_ = arrays[1];
  memories_ = arrays[2];
}

nb::object TreeBuilder::Remember(const Value& value, nb::object object) {
  built_.emplace(value.identity(), object);
  return object;
}

nb::object TreeBuilder::Raw(std::string_view text) const {
  if (options_.encoding == "bytes") return nb::bytes(text.data(), text.size());
  PyObject* const decoded =
      PyUnicode_Decode(text.data(), static_cast<Py_ssize_t>(text.size()),
                       options_.encoding.c_str(), "strict");
  if (decoded == nullptr &&
      PyErr_ExceptionMatches(PyExc_UnicodeDecodeError) != 0) {
    PyErr_Clear();
    Raise(Status(Code::kCorrupt, "text that Python 2 wrote is not " +
                                     options_.encoding +
                                     ": give haulway.torch.load its encoding"));
  }
  return Steal(decoded);
}

nb::object TreeBuilder::Build(const Value& value) {
  switch (value.kind()) {
    case Kind::kNone:
      return nb::none();
    case Kind::kBool:
      return nb::bool_(value.boolean());
    case Kind::kInt:
      return Steal(PyLong_FromLongLong(value.integer()));
    case Kind::kBigInt:
      return BigInt(value.text());
    case Kind::kFloat:
      return Steal(PyFloat_FromDouble(value.real()));
    case Kind::kComplex:
      return Steal(PyComplex_FromDoubles(value.complex().real(),
                                         value.complex().imag()));
    case Kind::kString:
      return PickleText(value.text());
    case Kind::kRawString:
      return Raw(value.text());
    case Kind::kBytes:
      return nb::bytes(value.text().data(), value.text().size());
    default:
      break;
  }
  if (const auto found = built_.find(value.identity()); found != built_.end()) {
    return found->second;
  }
  switch (value.kind()) {
    case Kind::kByteArray:
      return Remember(value,
                      Steal(PyByteArray_FromStringAndSize(
                          value.text().data(),
                          static_cast<Py_ssize_t>(value.text().size()))));
    case Kind::kDict:
    case Kind::kOrderedDict:
    case Kind::kCounter:
      return BuildMapping(value);
    case Kind::kGlobal:
      return Remember(value,
                      factory_.attr("name")(PickleText(value.global().module),
                                            PickleText(value.global().name)));
    case Kind::kObject:
      return BuildObject(value);
    case Kind::kPersistent: {
      const uint32_t row = value.persistent_storage();
      return Remember(value, factory_.attr("storage")(
                                 Base(row), row, Build(value.persistent_id())));
    }
    default:
      return BuildSequence(value);
  }
}

nb::object TreeBuilder::BuildWhole() {
  if (!index_.flat) return Build(index_.root);
  nb::dict dict;
  for (const Entry& entry : index_.entries) {
    Check(PyDict_SetItem(dict.ptr(), PickleText(entry.name).ptr(),
                         BuildTensor(entry.tensor).ptr()));
  }
  return dict;
}

nb::object TreeBuilder::BuildSequence(const Value& value) {
  const auto items = value.sequence().items();
  if (value.is(Kind::kList)) {
    nb::object list = Remember(value, nb::list());
    for (const Value& item : items) {
      Check(PyList_Append(list.ptr(), Build(item).ptr()));
    }
    return list;
  }
  if (value.is(Kind::kTuple)) {
    nb::object tuple =
        Steal(PyTuple_New(static_cast<Py_ssize_t>(items.size())));
    for (size_t i = 0; i < items.size(); ++i) {
      PyTuple_SET_ITEM(tuple.ptr(), static_cast<Py_ssize_t>(i),
                       Build(items[i]).release().ptr());
    }
    return Remember(value, std::move(tuple));
  }
  // A set cannot contain itself, so its items are built first.
  nb::list list;
  for (const Value& item : items) {
    Check(PyList_Append(list.ptr(), Build(item).ptr()));
  }
  PyObject* const set = value.is(Kind::kSet) ? PySet_New(list.ptr())
                                             : PyFrozenSet_New(list.ptr());
  CheckHashed(set != nullptr);
  return Remember(value, Steal(set));
}

nb::object TreeBuilder::BuildMapping(const Value& value) {
  nb::object mapping;
  if (value.is(Kind::kDict)) {
    mapping = nb::dict();
  } else {
    mapping = value.is(Kind::kCounter) ? counter_() : ordered_dict_();
  }
  Remember(value, mapping);
  for (const MappingItem& item : value.mapping().items()) {
    CheckHashed(PyObject_SetItem(mapping.ptr(), Build(item.key).ptr(),
                                 Build(item.value).ptr()) == 0);
  }
  if (!value.mapping().state.is(Kind::kNone)) {
    factory_.attr("set_attributes")(mapping, Build(value.mapping().state));
  }
  return mapping;
}

nb::object TreeBuilder::BuildObject(const Value& value) {
  const Object& object = value.object();
  // Adds the offset of the opcode that makes the object to an Error.
  const auto call = [&](const char* name, auto&&... arguments) {
    try {
      return nb::object(factory_.attr(name)(arguments...));
    } catch (nb::python_error& error) {
      nb::module_::import_("haulway._errors")
          .attr("place")(error.value(), object.byte);
      throw;
    }
  };
  // A tensor of a format whose trees have no calls.
  if (object.tensor != Object::kNoTensor && object.called.is(Kind::kNone)) {
    return Remember(value, BuildTensor(object.tensor));
  }
  if (object.tensor != Object::kNoTensor && IsDense(index_, object.tensor) &&
      IsPlainRebuild(object)) {
    return Remember(value, BuildTensor(object.tensor));
  }
  const Global* callable = NameOf(object);
  const nb::object module = PickleText(callable->module);
  const nb::object name = PickleText(callable->name);
  nb::object kwargs = nb::none();
  if (object.extras != nullptr) kwargs = Build(object.extras->kwargs);
  const nb::object args = Build(object.args);
  nb::object built =
      object.callable == nullptr || !object.callable->allowed
          ? factory_.attr("opaque")(module, name, object.byte, args, kwargs)
          : call("construct", module, name, args, kwargs, object.is_new);
  Remember(value, built);
  if (object.extras != nullptr) {
    nb::list appended;
    for (const Value& item : object.extras->appended.items()) {
      appended.append(Build(item));
    }
    nb::list items;
    for (const MappingItem& item : object.extras->items.items()) {
      items.append(nb::make_tuple(Build(item.key), Build(item.value)));
    }
    if (nb::len(appended) != 0 || nb::len(items) != 0) {
      call("extend", built, appended, items);
    }
  }
  if (!object.state.is(Kind::kNone)) {
    const nb::object state = Build(object.state);
    built = call("set_state", built, module, name, state);
    built_[value.identity()] = built;
  }
  return built;
}

nb::object TreeBuilder::BuildTensor(uint32_t row) {
  const TensorInfo& tensor = index_.tensors[row];
  if (array_type_.is_valid() && tensor.storage != kNoStorage &&
      tensor.nbytes != 0 && !tensor.conjugate && !tensor.negative &&
      tensor.shape.size() <= kMostDimensions && IsRowMajor(tensor)) {
    return BuildArray(tensor);
  }
  if (options_.from_dlpack.is_none() || tensor.storage == kNoStorage) {
    return factory_.attr("tensor")(row);
  }
  nb::object& base = bases_[tensor.storage];
  const bool is_whole = options_.bases.is_none() && !base.is_valid() &&
                        tensor.nbytes != 0 && tensor.storage_offset == 0 &&
                        !tensor.conjugate && !tensor.negative &&
                        !tensor.requires_grad &&
                        tensor.nbytes == index_.storages[tensor.storage].nbytes;
  if (is_whole) {
    // The tensor covers every element once, from the first; only the order can
    // differ from row-major.
    const Buffer& bytes = options_.buffers[tensor.storage];
    nb::object lent;
    if (IsRowMajor(tensor) && bytes.writable()) {
      lent = lender_.Lend(bytes, tensor.dtype, tensor.shape);
    }
    if (lent.is_valid()) {
      base = std::move(lent);
      return base;
    }
  }
  return factory_.attr("view")(Base(tensor.storage), row);
}

nb::object TreeBuilder::Base(uint32_t storage) {
  if (options_.from_dlpack.is_none()) return nb::none();
  nb::object& base = bases_[storage];
  if (base.is_valid()) return base;
  if (!options_.bases.is_none()) {
    base = options_.bases[storage];
    return base;
  }
  const Buffer& bytes = options_.buffers[storage];
  const auto size = static_cast<int64_t>(bytes.size());
  if (size == 0 || !bytes.writable()) {
    base = factory_.attr("base")(storage, MakeMemory(bytes));
    return base;
  }
  base = lender_.Lend(bytes, DType::kU8, {&size, 1});
  return base;
}

nb::object TreeBuilder::BuildArray(const TensorInfo& tensor) {
  nb::object& dtype = dtypes_[tensor.dtype];
  if (!dtype.is_valid()) dtype = dtype_named_(PickleText(Name(tensor.dtype)));
  const auto rank = static_cast<Py_ssize_t>(tensor.shape.size());
  const nb::object shape = Steal(PyTuple_New(rank));
  for (Py_ssize_t d = 0; d < rank; ++d) {
    PyTuple_SET_ITEM(
        shape.ptr(), d,
        Steal(PyLong_FromLongLong(tensor.shape[d])).release().ptr());
  }
  const nb::object offset = Steal(PyLong_FromUnsignedLongLong(
      tensor.storage_offset * ItemBytes(tensor.dtype)));
  PyObject* const arguments[] = {
      shape.ptr(), dtype.ptr(),
      PyList_GET_ITEM(memories_.ptr(), tensor.storage), offset.ptr()};
  return Steal(PyObject_Vectorcall(array_type_.ptr(), arguments, 4, nullptr));
}

}  // namespace haulway::python
