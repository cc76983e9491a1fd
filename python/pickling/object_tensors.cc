// Design: a tensor is recognised by its exact type and written from ten
// properties, each read once: dtype, shape, strides, offset, storage, and the
// flags that decide which of torch's rebuild functions is called. Its storage
// becomes a record; the record's key is the order in which storages are first
// met, as in torch. Quantized, sparse, nested and wrapped tensors, parameters
// and subclasses use torch's own reduction, which differs between releases.
//
// Reading torch's C++ objects would need its headers and one build per release.
// Using __reduce_ex__ for every tensor would run its Python code each time.

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <span>
#include <string>

#include "pickling/object_walker.h"

namespace nb = nanobind;

namespace haulway::python {

bool ObjectWalker::SaveNamed(const nb::object& global) {
  return writer_.Get(global.ptr()) || Save(global.ptr());
}

bool ObjectWalker::RefuseSecondDType() {
  return Fail(Code::kUnsupported,
              "cannot save multiple tensors or storages that view the same "
              "data as different types");
}

nb::object ObjectWalker::LocationOf(PyObject* storage) {
  return nb::steal(PyObject_CallOneArg(torch_.location_tag().ptr(), storage));
}

size_t ObjectWalker::RowOf(PyObject* storage, PyObject* dtype,
                           uint64_t item_bytes) {
  size_t row = rows_.Find(storage);
  if (row == PickleMemo::kNone) return AddRow(storage, dtype, item_bytes);
  if (notes_[row].dtype != dtype && notes_[row].is_allocated) {
    RefuseSecondDType();
    return kNoRow;
  }
  return row;
}

size_t ObjectWalker::AddRow(PyObject* storage, PyObject* dtype,
                            uint64_t item_bytes) {
  uint64_t identity = 0;
  uint64_t nbytes = 0;
  const std::byte* data = nullptr;
  if (!torch_.StorageAddress(storage, &identity, &nbytes, &data)) return kNoRow;
  const auto row = static_cast<uint32_t>(storages_.size());
  if (data != nullptr) {
    const uint32_t first = rows_by_data_.Find(data);
    if (first == PickleMemo::kNone) {
      rows_by_data_.Add(data, row);
    } else if (notes_[first].dtype != dtype) {
      RefuseSecondDType();
      return kNoRow;
    }
  }
  const auto* address = reinterpret_cast<const void*>(identity);
  const uint32_t known = rows_by_identity_.Find(address);
  if (known != PickleMemo::kNone) return known;
  rows_by_identity_.Add(address, row);
  rows_.Add(storage, row);
  storages_.push_back(
      {nb::borrow(storage), {}, data, nbytes, item_bytes, identity});
  notes_.push_back({dtype, PickleMemo::kNone, data != nullptr});
  return row;
}

bool ObjectWalker::SaveKey(size_t row) {
  if (options_.legacy) {
    // The legacy container gets a new string at each mention.
    writer_.Unicode(fmt::format("{}", storages_[row].legacy_key));
    writer_.PutUnshared();
    return true;
  }
  StorageNote& note = notes_[row];
  if (note.key_memo != PickleMemo::kNone) {
    writer_.BeginObject();
    writer_.GetNumber(note.key_memo);
    return true;
  }
  note.key_memo = writer_.memo_count();
  if (row >= 10) {
    char digits[20];
    const auto end = fmt::format_to(digits, "{}", row);
    writer_.Unicode({digits, static_cast<size_t>(end - digits)});
    writer_.PutUnshared();
    return true;
  }
  // Python may share strings of one character.
  const nb::object number = nb::steal(PyLong_FromSize_t(row));
  const nb::object key = nb::steal(PyObject_Str(number.ptr()));
  if (!key.is_valid()) return false;
  const uint32_t shared = writer_.Find(key.ptr());
  if (shared != PickleMemo::kNone) note.key_memo = shared;
  return Save(key.ptr());
}

namespace {

void WriteSizes(PickleWriter& writer, std::span<const int64_t> sizes) {
  if (PickleWriter::TupleNeedsMark(sizes.size())) writer.BeginMarked();
  for (const int64_t size : sizes) writer.Int(size);
  writer.Tuple(sizes.size());
  if (!sizes.empty()) writer.PutUnshared();
}

}  // namespace

bool ObjectWalker::SaveName(const WrittenName& name) {
  if (writer_.Get(name.id)) return true;
  if (name.object != nullptr) return Save(name.object);
  writer_.Global(name.module, name.name);
  writer_.Put(name.id);
  return true;
}

// The view metadata of a storage has been None since torch 0.4.
void ObjectWalker::EndPersistentId() {
  if (options_.legacy) writer_.None();
  writer_.Tuple(options_.legacy ? 6 : 5);
  writer_.PutUnshared();
  writer_.BinPersId();
}

// Writes the call that Tensor._reduce_ex_internal() returns:
// _rebuild_tensor_v2(storage, offset, size, stride, requires_grad, hooks), or
// v3, which also has the dtype.
bool ObjectWalker::WriteTensor(const WrittenTensor& tensor) {
  const bool is_v3 = tensor.dtype.id != nullptr;
  if (!SaveName(tensor.rebuild)) return false;
  writer_.BeginMarked();
  writer_.BeginMarked();
  if (!SaveNamed(storage_word_) || !SaveName(tensor.storage_class) ||
      !SaveKey(tensor.row) || !SaveNamed(storages_[tensor.row].location)) {
    return false;
  }
  writer_.Int(static_cast<int64_t>(tensor.count));
  EndPersistentId();
  writer_.Int(tensor.offset);
  WriteSizes(writer_, tensor.shape);
  WriteSizes(writer_, tensor.strides);
  writer_.Bool(tensor.requires_grad);
  if (!SaveNamed(ordered_dict_)) return false;
  writer_.Tuple(0);
  writer_.Reduce();
  writer_.PutUnshared();
  if (is_v3 && !SaveName(tensor.dtype)) return false;
  writer_.Tuple(is_v3 ? 7 : 6);
  writer_.PutUnshared();
  writer_.Reduce();
  return true;
}

bool ObjectWalker::CopyDense(PyObject* tensor, PickledStorage* copy) {
  try {
    copy->owner = nb::borrow(tensor).attr("detach")().attr("contiguous")().attr(
        "untyped_storage")();
  } catch (nb::python_error& error) {
    error.restore();
    return false;
  }
  uint64_t identity = 0;
  return torch_.StorageAddress(copy->owner.ptr(), &identity, &copy->nbytes,
                               &copy->data);
}

bool ObjectWalker::WriteFacts(PyObject* source, bool requires_grad) {
  const DTypeRow& dtype = *facts_.dtype;
  WrittenTensor tensor;
  tensor.rebuild =
      Written(dtype.is_v3 ? torch_.rebuild_v3() : torch_.rebuild_v2());
  tensor.storage_class = Written(dtype.storage_class);
  if (dtype.is_v3) tensor.dtype = Written(dtype.dtype);
  tensor.offset = facts_.offset;
  tensor.shape = facts_.shape;
  tensor.strides = facts_.strides;
  tensor.requires_grad = requires_grad;
  if (survey_ != nullptr) {
    const uint32_t surveyed = survey_->rows_.Find(facts_.storage.ptr());
    const auto copy = [&](PickledStorage* dense) {
      return CopyDense(source, dense);
    };
    bool placed = false;
    if (surveyed != PickleMemo::kNone &&
        !PlaceInCut(surveyed, dtype.element_bytes, dtype.item_bytes, copy,
                    &tensor, &placed)) {
      return false;
    }
    if (placed) return WriteTensor(tensor);
  }
  tensor.row =
      RowOf(facts_.storage.ptr(), dtype.stored_as.ptr(), dtype.item_bytes);
  if (tensor.row == kNoRow) return false;
  PickledStorage& storage = storages_[tensor.row];
  if (!storage.location.is_valid()) {
    storage.location = torch_.cpu_tag().is_valid()
                           ? torch_.cpu_tag()
                           : LocationOf(facts_.storage.ptr());
    if (!storage.location.is_valid()) return false;
  }
  tensor.count = storage.nbytes / dtype.item_bytes;
  if (options_.compact) {
    plan_.AddView(tensor.row,
                  static_cast<uint64_t>(tensor.offset) * dtype.element_bytes,
                  dtype.element_bytes, tensor.shape, tensor.strides);
  }
  return WriteTensor(tensor);
}

ObjectWalker::Outcome ObjectWalker::SaveTensor(PyObject* tensor,
                                               bool is_parameter) {
  const TensorKind kind = torch_.Read(tensor, &facts_);
  if (kind == TensorKind::kOther) return Outcome::kNotMine;
  if (kind == TensorKind::kFailed) return Outcome::kFailed;
  if (!is_parameter) {
    if (!WriteFacts(tensor, facts_.requires_grad)) return Outcome::kFailed;
    Put(tensor);
    return Outcome::kDone;
  }
  // _rebuild_parameter(data, requires_grad, hooks)
  if (!SaveNamed(torch_.rebuild_parameter()) ||
      !WriteFacts(tensor, /*requires_grad=*/false)) {
    return Outcome::kFailed;
  }
  writer_.PutUnshared();
  writer_.Bool(facts_.requires_grad);
  if (!SaveNamed(ordered_dict_)) return Outcome::kFailed;
  writer_.Tuple(0);
  writer_.Reduce();
  writer_.PutUnshared();
  writer_.Tuple(3);
  writer_.PutUnshared();
  writer_.Reduce();
  Put(tensor);
  return Outcome::kDone;
}

ObjectWalker::Outcome ObjectWalker::SaveStorage(PyObject* object) {
  if (!torch_.is_loaded()) return Outcome::kNotMine;
  PyTypeObject* type = Py_TYPE(object);
  uint32_t known = types_.Find(type);
  if (known == PickleMemo::kNone) {
    known = static_cast<uint32_t>(torch_.StorageKindOf(object));
    if (PyErr_Occurred() != nullptr) return Outcome::kFailed;
    types_.Add(type, known);
    Py_INCREF(type);
    kept_.push_back(reinterpret_cast<PyObject*>(type));
  }
  if (known == static_cast<uint32_t>(StorageKind::kNone)) {
    return Outcome::kNotMine;
  }
  try {
    return SavePersistentId(nb::borrow(object),
                            known == static_cast<uint32_t>(StorageKind::kTyped))
               ? Outcome::kDone
               : Outcome::kFailed;
  } catch (nb::python_error& error) {
    error.restore();
    return Outcome::kFailed;
  }
}

// Writes ('storage', class, key, location, count), as torch.save's
// persistent_id() returns it.
bool ObjectWalker::SavePersistentId(const nb::object& object, bool is_typed) {
  nb::object storage = object;
  nb::object dtype = torch_.uint8();
  nb::object type_name;
  nb::object count;
  if (is_typed) {
    const nb::object parts = torch_.parts_of_storage()(object);
    storage = parts[0];
    type_name = parts[1];
    count = parts[2];
    dtype = object.attr("dtype");
  } else {
    type_name = object.type().attr("__name__");
    count = storage.attr("nbytes")();
  }
  const nb::object type = torch_.torch().attr(type_name);
  const auto device =
      nb::cast<std::string>(storage.attr("device").attr("type"));
  size_t row = kNoRow;
  if (device == "meta" && options_.legacy) {
    return Fail(Code::kUnsupported,
                "storage without data: the legacy container has no place for "
                "one");
  }
  if (device == "meta") {
    row = rows_.Find(storage.ptr());
    if (row == PickleMemo::kNone) {
      row = storages_.size();
      rows_.Add(storage.ptr(), static_cast<uint32_t>(row));
      storages_.push_back(
          {storage, {}, nullptr, nb::cast<uint64_t>(storage.attr("nbytes")())});
      notes_.push_back({dtype.ptr(), PickleMemo::kNone, false});
    }
  } else {
    row = RowOf(storage.ptr(), dtype.ptr(),
                nb::cast<uint64_t>(dtype.attr("itemsize")));
    if (row == kNoRow) return false;
    // An address on another device is not valid in this process.
    if (device != "cpu") storages_[row].data = nullptr;
  }
  plan_.KeepWhole(row);
  nb::object location;
  const nb::object fake = torch_.fake_device()(object);
  if (!fake.is_none() && !options_.legacy) {
    location = nb::str(fake);
  } else {
    location = LocationOf(storage.ptr());
  }
  if (!location.is_valid()) return false;
  if (!storages_[row].location.is_valid()) storages_[row].location = location;

  writer_.BeginMarked();
  if (!SaveNamed(storage_word_) || !Save(type.ptr()) || !SaveKey(row) ||
      !Save(location.ptr()) || !Save(count.ptr())) {
    return false;
  }
  EndPersistentId();
  return true;
}

}  // namespace haulway::python
