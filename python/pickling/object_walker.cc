// Design: the walker treats Python objects as pickle.Pickler.save() does, in
// the same order and with the same batches, and writes through PickleWriter, so
// that the result equals CPython's byte for byte. Exact types are written by
// the C API; other objects use their reduction. Two things differ: a global
// that is not data ends the walk with an error that shows the path to the
// object, and plain tensors are written from a few properties without the
// Python code of Tensor.__reduce_ex__ (object_tensors.cc).
//
// A subclass of pickle.Pickler would be called from C for every object, and the
// pickler knows neither paths nor which globals are data.

#include "pickling/object_walker.h"

#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "base/container_items.h"
#include "base/errors.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

constexpr Py_ssize_t kBatch = PickleWriter::kBatch;
constexpr Py_ssize_t kMostText = 0xFFFFFFFF;

}  // namespace

ObjectWalker::ObjectWalker(const PickleObjectOptions& options,
                           ObjectWalker* survey)
    : options_(options),
      writer_(options.protocol),
      survey_(survey),
      storage_word_(nb::steal(PyUnicode_InternFromString("storage"))),
      cpu_(nb::steal(PyUnicode_InternFromString("cpu"))),
      ordered_dict_(nb::module_::import_("collections").attr("OrderedDict")) {}

ObjectWalker::~ObjectWalker() {
  for (PyObject* object : kept_) Py_DECREF(object);
}

PickledObject ObjectWalker::Finish() {
  return {writer_.Finish(), std::move(storages_)};
}

bool ObjectWalker::Fail(Code code, std::string_view what) {
  const std::string message = fmt::format("{}: {}", path_.Show(), what);
  try {
    Raise(Status(code, message));
  } catch (nb::python_error& error) {
    error.restore();
  }
  return false;
}

void ObjectWalker::Put(PyObject* object) {
  Py_INCREF(object);
  kept_.push_back(object);
  writer_.Put(object);
}

bool ObjectWalker::SaveInt(PyObject* object) {
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (overflow == 0) {
    if (value == -1 && PyErr_Occurred() != nullptr) return false;
    writer_.Int(value);
    return true;
  }
  const nb::object number = nb::borrow(object);
  try {
    const auto bits = nb::cast<size_t>(number.attr("bit_length")());
    const nb::object bytes = number.attr("to_bytes")(bits / 8 + 1, "little",
                                                     nb::arg("signed") = true);
    writer_.BigInt({PyBytes_AS_STRING(bytes.ptr()),
                    static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))});
  } catch (nb::python_error& error) {
    error.restore();
    return false;
  }
  return true;
}

bool ObjectWalker::SaveText(PyObject* object) {
  Py_ssize_t size = 0;
  const char* data = PyUnicode_AsUTF8AndSize(object, &size);
  nb::object encoded;
  if (data == nullptr) {
    // The text has lone surrogates.
    PyErr_Clear();
    encoded =
        nb::steal(PyUnicode_AsEncodedString(object, "utf-8", "surrogatepass"));
    if (!encoded.is_valid()) return false;
    data = PyBytes_AS_STRING(encoded.ptr());
    size = PyBytes_GET_SIZE(encoded.ptr());
  }
  if (size > kMostText && options_.protocol < 4) {
    return Fail(Code::kUnsupported,
                fmt::format("string of {} bytes: expected less than 4 GiB, "
                            "which is all that protocol {} can hold",
                            size, options_.protocol));
  }
  writer_.Unicode({data, static_cast<size_t>(size)});
  Put(object);
  return true;
}

// Protocol 2 has no opcode for bytes, so it calls _codecs.encode(text,
// 'latin1').
bool ObjectWalker::SaveBytes(PyObject* object) {
  if (options_.protocol >= 3) {
    const Py_ssize_t size = PyBytes_GET_SIZE(object);
    if (size > kMostText && options_.protocol < 4) {
      return Fail(Code::kUnsupported,
                  fmt::format("{} bytes: expected less than 4 GiB, which is "
                              "all that protocol 3 can hold",
                              size));
    }
    writer_.Binary({PyBytes_AS_STRING(object), static_cast<size_t>(size)});
    Put(object);
    return true;
  }
  if (PyBytes_GET_SIZE(object) == 0) {
    const nb::object reduction = nb::steal(
        Py_BuildValue("(O())", reinterpret_cast<PyObject*>(&PyBytes_Type)));
    return reduction.is_valid() && SaveReduction(reduction.ptr(), object);
  }
  const nb::object text = nb::steal(PyUnicode_DecodeLatin1(
      PyBytes_AS_STRING(object), PyBytes_GET_SIZE(object), "strict"));
  if (!text.is_valid()) return false;
  const nb::object codecs = nb::steal(PyImport_ImportModule("_codecs"));
  if (!codecs.is_valid()) return false;
  const nb::object encode =
      nb::steal(PyObject_GetAttrString(codecs.ptr(), "encode"));
  const nb::object latin1 = nb::steal(PyUnicode_InternFromString("latin1"));
  if (!encode.is_valid() || !latin1.is_valid()) return false;
  const nb::object reduction = nb::steal(
      Py_BuildValue("(O(OO))", encode.ptr(), text.ptr(), latin1.ptr()));
  return reduction.is_valid() && SaveReduction(reduction.ptr(), object);
}

bool ObjectWalker::SaveByteArray(PyObject* object) {
  if (options_.protocol >= 5) {
    const nb::ft_object_guard guard(object);
    writer_.ByteArray({PyByteArray_AS_STRING(object),
                       static_cast<size_t>(PyByteArray_GET_SIZE(object))});
    Put(object);
    return true;
  }
  auto* type = reinterpret_cast<PyObject*>(&PyByteArray_Type);
  nb::object reduction;
  if (PyByteArray_GET_SIZE(object) == 0) {
    reduction = nb::steal(Py_BuildValue("(O())", type));
  } else {
    const nb::object bytes = nb::steal(PyBytes_FromObject(object));
    if (!bytes.is_valid()) return false;
    reduction = nb::steal(Py_BuildValue("(O(O))", type, bytes.ptr()));
  }
  return reduction.is_valid() && SaveReduction(reduction.ptr(), object);
}

// Writes the buffer into the pickle: there is no out-of-band consumer.
bool ObjectWalker::SaveBuffer(PyObject* object) {
  const Py_buffer* view = PyPickleBuffer_GetBuffer(object);
  if (view == nullptr) return false;
  if (PyBuffer_IsContiguous(view, 'A') == 0) {
    return Fail(Code::kUnsupported, "a PickleBuffer that is not contiguous");
  }
  const std::string_view bytes(static_cast<const char*>(view->buf),
                               static_cast<size_t>(view->len));
  view->readonly != 0 ? writer_.Binary(bytes) : writer_.ByteArray(bytes);
  Put(object);
  return true;
}

bool ObjectWalker::SaveSet(PyObject* object) {
  if (options_.protocol >= 4) {
    if (Py_TYPE(object) == &PyFrozenSet_Type) return SaveFrozenSet(object);
    writer_.EmptySet();
    Put(object);
    const Py_ssize_t size = PySet_GET_SIZE(object);
    if (size == 0) return true;
    path_.Enter();
    size_t index = 0;
    const nb::object iterator = nb::steal(PyObject_GetIter(object));
    if (!iterator.is_valid()) return false;
    // As in Python, a full batch is followed by another, which may be empty.
    for (Py_ssize_t batch = kBatch; batch == kBatch;) {
      writer_.Mark();
      for (batch = 0; batch < kBatch; ++batch) {
        const nb::object item = nb::steal(PyIter_Next(iterator.ptr()));
        if (!item.is_valid()) break;
        path_.AtIndex(index++);
        if (!Save(item.ptr())) return false;
      }
      if (PyErr_Occurred() != nullptr) return false;
      writer_.AddItems();
    }
    path_.Leave();
    return true;
  }
  const nb::object items = nb::steal(PySequence_List(object));
  if (!items.is_valid()) return false;
  const nb::object reduction = nb::steal(Py_BuildValue(
      "(O(O))", reinterpret_cast<PyObject*>(Py_TYPE(object)), items.ptr()));
  return reduction.is_valid() && SaveReduction(reduction.ptr(), object);
}

bool ObjectWalker::SaveFrozenSet(PyObject* object) {
  writer_.BeginMarked();
  const nb::object iterator = nb::steal(PyObject_GetIter(object));
  if (!iterator.is_valid()) return false;
  path_.Enter();
  for (size_t index = 0;; ++index) {
    const nb::object item = nb::steal(PyIter_Next(iterator.ptr()));
    if (!item.is_valid()) break;
    path_.AtIndex(index);
    if (!Save(item.ptr())) return false;
  }
  if (PyErr_Occurred() != nullptr) return false;
  path_.Leave();
  if (writer_.Has(object)) {
    // The set contains itself, so it is already in the memo.
    writer_.PopMark();
    writer_.GetNumber(writer_.Find(object));
    return true;
  }
  writer_.FrozenSet();
  Put(object);
  return true;
}

bool ObjectWalker::SaveTuple(PyObject* object, Steps steps) {
  const auto count = static_cast<size_t>(PyTuple_GET_SIZE(object));
  if (count == 0) {
    writer_.Tuple(0);
    return true;
  }
  const bool marked = PickleWriter::TupleNeedsMark(count);
  if (marked) writer_.BeginMarked();
  if (steps == Steps::kShown) path_.Enter();
  for (size_t i = 0; i < count; ++i) {
    if (steps == Steps::kShown) path_.AtIndex(i);
    if (!Save(PyTuple_GET_ITEM(object, static_cast<Py_ssize_t>(i)))) {
      return false;
    }
  }
  if (steps == Steps::kShown) path_.Leave();
  if (writer_.Has(object)) {
    // The tuple contains itself, so it is already in the memo.
    if (marked) {
      writer_.PopMark();
    } else {
      for (size_t i = 0; i < count; ++i) writer_.Pop();
    }
    writer_.GetNumber(writer_.Find(object));
    return true;
  }
  writer_.Tuple(count);
  Put(object);
  return true;
}

bool ObjectWalker::SaveList(PyObject* object) {
  writer_.EmptyList();
  Put(object);
  const bool single = PyList_GET_SIZE(object) == 1;
  path_.Enter();
  // The list may change while its items are reduced.
  for (Py_ssize_t done = 0; done < PyList_GET_SIZE(object);) {
    if (!single) writer_.Mark();
    const Py_ssize_t end = done + kBatch;
    for (; done < PyList_GET_SIZE(object) && done < end; ++done) {
      path_.AtIndex(static_cast<size_t>(done));
      const nb::object item = ItemAt(object, done);
      if (!item.is_valid()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "list changed size during iteration");
        return false;
      }
      if (!Save(item.ptr())) return false;
    }
    if (single) {
      writer_.Append();
      break;
    }
    writer_.Appends();
  }
  path_.Leave();
  return true;
}

bool ObjectWalker::SaveKeyAndValue(PyObject* key, PyObject* value) {
  path_.AtKey(key);
  return Save(key) && Save(value);
}

bool ObjectWalker::SaveDict(PyObject* object) {
  writer_.EmptyDict();
  Put(object);
  const Py_ssize_t size = PyDict_GET_SIZE(object);
  if (size == 0) return true;
  path_.Enter();
  nb::object key;
  nb::object value;
  Py_ssize_t place = 0;
  Py_ssize_t batch = kBatch;
  // As in Python, a full batch is followed by another, which may be empty.
  while (batch == kBatch) {
    if (size != 1) writer_.Mark();
    for (batch = 0; batch < kBatch; ++batch) {
      if (!NextItem(object, &place, &key, &value)) break;
      if (!SaveKeyAndValue(key.ptr(), value.ptr())) return false;
      if (PyDict_GET_SIZE(object) != size) {
        PyErr_SetString(PyExc_RuntimeError,
                        "dictionary changed size during iteration");
        return false;
      }
    }
    size == 1 ? writer_.SetItem() : writer_.SetItems();
  }
  path_.Leave();
  return true;
}

// Writes the items of an iterator in CPython's batches. CPython reads one item
// ahead before it writes the first.
template <class SaveItem>
bool ObjectWalker::SaveBatches(PyObject* iterator, const SaveItem& save_item,
                               void (PickleWriter::*one)(),
                               void (PickleWriter::*many)()) {
  const auto next = [&] { return nb::steal(PyIter_Next(iterator)); };
  path_.Enter();
  for (Py_ssize_t count = kBatch; count == kBatch;) {
    const nb::object first = next();
    if (!first.is_valid()) break;
    nb::object item = next();
    if (!item.is_valid()) {
      if (PyErr_Occurred() != nullptr || !save_item(first.ptr())) return false;
      (writer_.*one)();
      break;
    }
    writer_.Mark();
    if (!save_item(first.ptr())) return false;
    count = 1;
    while (item.is_valid()) {
      if (!save_item(item.ptr())) return false;
      if (++count == kBatch) break;
      item = next();
    }
    if (PyErr_Occurred() != nullptr) return false;
    (writer_.*many)();
  }
  path_.Leave();
  return PyErr_Occurred() == nullptr;
}

bool ObjectWalker::AppendFrom(PyObject* iterator) {
  size_t index = 0;
  const auto save = [&](PyObject* item) {
    path_.AtIndex(index++);
    return Save(item);
  };
  return SaveBatches(iterator, save, &PickleWriter::Append,
                     &PickleWriter::Appends);
}

bool ObjectWalker::SetItemsFrom(PyObject* iterator) {
  const auto save = [&](PyObject* item) {
    if (!PyTuple_Check(item) || PyTuple_GET_SIZE(item) != 2) {
      PyErr_SetString(PyExc_TypeError,
                      "dict items iterator must return 2-tuples");
      return false;
    }
    return SaveKeyAndValue(PyTuple_GET_ITEM(item, 0),
                           PyTuple_GET_ITEM(item, 1));
  };
  return SaveBatches(iterator, save, &PickleWriter::SetItem,
                     &PickleWriter::SetItems);
}

bool ObjectWalker::Save(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (object == Py_None) {
    writer_.None();
    return true;
  }
  if (type == &PyBool_Type) {
    writer_.Bool(object == Py_True);
    return true;
  }
  if (type == &PyLong_Type) return SaveInt(object);
  if (type == &PyFloat_Type) {
    writer_.Float(PyFloat_AS_DOUBLE(object));
    return true;
  }
  if (writer_.Get(object)) return true;
  if (type == &PyUnicode_Type) return SaveText(object);
  if (depth_ == options_.max_depth) {
    // The path is as deep as the nesting, so it is not shown.
    try {
      Raise(Status(Code::kLimit,
                   fmt::format("object to save is nested deeper than max_depth "
                               "= {}",
                               options_.max_depth)));
    } catch (nb::python_error& error) {
      error.restore();
    }
    return false;
  }
  ++depth_;
  const bool saved = Dispatch(object);
  --depth_;
  return saved;
}

// Follows the order of CPython's save(): exact types first, then the reduction.
bool ObjectWalker::Dispatch(PyObject* object) {
  PyTypeObject* type = Py_TYPE(object);
  if (torch_.IsTensor(type)) {
    const Outcome outcome = SaveTensor(object, torch_.IsParameter(type));
    if (outcome != Outcome::kNotMine) return outcome == Outcome::kDone;
  }
  if (type == &PyDict_Type) return SaveDict(object);
  if (type == &PyList_Type) return SaveList(object);
  if (type == &PyTuple_Type) return SaveTuple(object);
  if (type == &PyBytes_Type) return SaveBytes(object);
  if (type == &PySet_Type || type == &PyFrozenSet_Type) return SaveSet(object);
  if (type == &PyByteArray_Type) return SaveByteArray(object);
  if (type == &PyPickleBuffer_Type && options_.protocol >= 5) {
    return SaveBuffer(object);
  }
  Outcome outcome = SaveStorage(object);
  if (outcome == Outcome::kNotMine && options_.arrays_as_tensors) {
    outcome = SaveArray(object);
  }
  if (outcome != Outcome::kNotMine) return outcome == Outcome::kDone;
  if (type == &PyType_Type || type == &PyFunction_Type) {
    return SaveGlobal(object, nullptr);
  }
  return SaveByReduction(object);
}

}  // namespace haulway::python
