// Design: a checkpoint is one class over the library's. Its index is converted
// on demand: rows of tensors to TensorInfo objects, and names to a list on
// first use. Memory is a class that keeps its Buffer alive. Loads release the
// GIL, and report progress and check signals through Progress.
//
// Building a Python object per tensor at open would take longer than parsing
// the index, and most programs want only a few of them. Classes are used
// instead of long tuples, so that fields are found by name.

#include "haulway/checkpoint.h"

#include <fmt/format.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/gc_pause.h"
#include "base/memory.h"
#include "base/path_text.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/file_source.h"
#include "bind/loading.h"
#include "bind/tree_builder.h"
#include "haulway/load.h"
#include "haulway/nearest.h"
#include "haulway/open.h"
#include "haulway/select.h"
#include "haulway/signing.h"
#include "haulway/source.h"

namespace nb = nanobind;

namespace haulway {

// Defined in cli/info.cc.
std::string InfoJson(const Checkpoint& checkpoint, std::string_view file);

namespace python {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;
using CheckpointPtr = std::shared_ptr<const Checkpoint>;

// Makes a source of a Python object's bytes, held by a read-only buffer view.
SourcePtr SourceOfBytes(nb::handle object, std::string name) {
  auto view = std::make_unique<Py_buffer>();
  if (PyObject_GetBuffer(object.ptr(), view.get(), PyBUF_SIMPLE) != 0) {
    throw nb::python_error();
  }
  const std::span<std::byte> bytes(static_cast<std::byte*>(view->buf),
                                   static_cast<size_t>(view->len));
  std::shared_ptr<Py_buffer> owner(view.release(), [](Py_buffer* held) {
    const GilHeld gil;
    if (gil) PyBuffer_Release(held);
    delete held;
  });
  return MakeBufferSource(Buffer(std::move(owner), bytes, /*writable=*/false),
                          std::move(name));
}

// Converts text that need not be valid UTF-8.
nb::object AnyText(const std::string& text) {
  PyObject* const object = PyUnicode_DecodeUTF8(
      text.data(), static_cast<Py_ssize_t>(text.size()), "surrogateescape");
  if (object == nullptr) throw nb::python_error();
  return nb::steal(object);
}

nb::object ItemObject(bool value) { return nb::bool_(value); }
nb::object ItemObject(int64_t value) { return nb::int_(value); }
nb::object ItemObject(uint64_t value) { return nb::int_(value); }
nb::object ItemObject(double value) { return nb::float_(value); }
nb::object ItemObject(const std::string& value) { return AnyText(value); }

nb::object FactObject(const FactValue& value) {
  if (const auto* flag = std::get_if<bool>(&value)) return nb::bool_(*flag);
  if (const auto* number = std::get_if<int64_t>(&value)) {
    return nb::int_(*number);
  }
  if (const auto* number = std::get_if<uint64_t>(&value)) {
    return nb::int_(*number);
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return AnyText(*text);
  }
  if (const auto* number = std::get_if<double>(&value)) {
    return nb::float_(*number);
  }
  if (const auto* array = std::get_if<FactArray>(&value)) {
    nb::list list;
    std::visit(
        [&](const auto& values) {
          for (size_t i = 0; i < values.size(); ++i) {
            list.append(ItemObject(values[i]));
          }
        },
        *array);
    return list;
  }
  if (const auto* json = std::get_if<FactJson>(&value)) {
    return nb::module_::import_("json").attr("loads")(json->text);
  }
  return nb::none();
}

nb::list Names(const Checkpoint& checkpoint) {
  const auto& entries = checkpoint.entries();
  PyObject* const list = PyList_New(static_cast<Py_ssize_t>(entries.size()));
  if (list == nullptr) throw nb::python_error();
  const nb::object names = nb::steal(list);
  for (size_t i = 0; i < entries.size(); ++i) {
    const std::string_view name = entries[i].name;
    PyObject* const text = PyUnicode_FromStringAndSize(
        name.data(), static_cast<Py_ssize_t>(name.size()));
    if (text == nullptr) throw nb::python_error();
    PyList_SET_ITEM(list, static_cast<Py_ssize_t>(i), text);
  }
  return nb::borrow<nb::list>(names);
}

nb::str StrOf(std::string_view text) {
  return nb::str(text.data(), text.size());
}

nb::tuple Ints(std::span<const int64_t> numbers) {
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(numbers.size()));
  if (tuple == nullptr) throw nb::python_error();
  const nb::object ints = nb::steal(tuple);
  for (size_t i = 0; i < numbers.size(); ++i) {
    PyObject* const number = PyLong_FromLongLong(numbers[i]);
    if (number == nullptr) throw nb::python_error();
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), number);
  }
  return nb::borrow<nb::tuple>(ints);
}

// Builds a named tuple of haulway._making.objects. The class's own __new__ is a
// Python function, which takes three times as long as tuple's.
template <class... Fields>
nb::object Named(const char* type, const Fields&... fields) {
  const nb::object made =
      nb::module_::import_("haulway._making.objects").attr(type);
  const nb::handle tuple(reinterpret_cast<PyObject*>(&PyTuple_Type));
  return tuple.attr("__new__")(made, nb::make_tuple(fields...));
}

// Returns a haulway.TensorInfo.
nb::object DescribeTensor(const Checkpoint& checkpoint, uint32_t row) {
  const TensorInfo& info = checkpoint.index().tensors.at(row);
  constexpr const char* kKinds[] = {"dense", "meta", "storage"};
  nb::object storage = nb::none();
  if (info.storage != kNoStorage) storage = nb::int_(info.storage);
  return Named("TensorInfo", kKinds[static_cast<int>(info.kind)],
               StrOf(Name(info.dtype)), Ints(info.shape), Ints(info.strides),
               info.storage_offset, storage, info.nbytes, info.requires_grad,
               info.conjugate, info.negative);
}

// Returns a StorageInfo.
nb::object DescribeStorage(const Checkpoint& checkpoint, uint32_t row) {
  const StorageInfo& info = checkpoint.index().storages.at(row);
  nb::object offset = nb::none();
  if (info.encoding == Encoding::kRaw) offset = nb::int_(info.offset);
  return Named("StorageInfo", StrOf(info.key), StrOf(info.location),
               StrOf(Name(info.dtype)), info.untyped, info.nbytes, offset);
}

// Returns a list parallel to `rows`: (a storage's size in bytes, dtype, shape).
// The dtype and shape are those of the tensor that is the storage: the only one
// in it, which covers it in row-major order. They are None if there is no such
// tensor.
nb::list StorageContents(const Checkpoint& checkpoint,
                         const std::vector<uint32_t>& rows) {
  const CheckpointIndex& index = checkpoint.index();
  std::vector<const TensorInfo*> only(index.storages.size());
  std::vector<bool> is_shared(index.storages.size());
  for (const TensorInfo& tensor : index.tensors) {
    if (tensor.storage == kNoStorage) continue;
    if (only[tensor.storage] != nullptr) is_shared[tensor.storage] = true;
    only[tensor.storage] = &tensor;
  }
  nb::list contents;
  for (const uint32_t row : rows) {
    const StorageInfo& storage = index.storages.at(row);
    const TensorInfo* const tensor = only[row];
    const bool is_it = tensor != nullptr && !is_shared[row] &&
                       tensor->kind == TensorKind::kDense &&
                       tensor->nbytes == storage.nbytes &&
                       tensor->storage_offset == 0 && !tensor->conjugate &&
                       !tensor->negative && !tensor->requires_grad &&
                       IsRowMajor(*tensor);
    if (is_it) {
      contents.append(nb::make_tuple(storage.nbytes, StrOf(Name(tensor->dtype)),
                                     Ints(tensor->shape)));
    } else {
      contents.append(nb::make_tuple(storage.nbytes, nb::none(), nb::none()));
    }
  }
  return contents;
}

// Loads storages; calls `progress` with the GIL held unless it is None.
LoadedStorages Load(const Checkpoint& checkpoint,
                    const std::vector<uint32_t>& rows, LoadOptions options,
                    nb::object progress) {
  Progress told(std::move(progress));
  told.Attach(&options);
  uint64_t bytes = 0;
  for (const uint32_t row : rows) {
    if (row < checkpoint.index().storages.size()) {
      bytes += checkpoint.index().storages[row].nbytes;
    }
  }
  return told.Run(
      [&] { return LoadStorages(checkpoint, rows, options); },
      IsRemote(checkpoint.source()) ? Signals::kMind : SignalsFor(bytes));
}

// For a source in memory, reads instead of lending views, unless the caller
// chose an I/O mode: torch tensors must be writable, and one copy of all
// storages is faster than one per storage.
void OwnMemory(const ByteSource& source, LoadOptions* options) {
  if (options->io != IoMode::kAuto || source.Look({}).local_file) return;
  const auto view = source.View(0, 0);
  if (view.has_value() && !view->writable()) options->io = IoMode::kPread;
}

nb::tuple BuildTree(const CheckpointPtr& checkpoint, nb::object factory,
                    nb::object from_dlpack, nb::object bases,
                    const std::string& encoding, nb::dict loading,
                    nb::object progress) {
  TreeBuilder::Options options;
  options.from_dlpack = from_dlpack;
  options.bases = bases;
  options.encoding = encoding;
  nb::object stats = nb::none();
  if (!from_dlpack.is_none() && bases.is_none()) {
    std::vector<uint32_t> rows(checkpoint->index().storages.size());
    std::iota(rows.begin(), rows.end(), 0);
    LoadOptions load = LoadOptionsOf(std::move(loading));
    OwnMemory(checkpoint->source(), &load);
    LoadedStorages loaded = Load(*checkpoint, rows, std::move(load), progress);
    options.buffers = std::move(loaded.buffers);
    stats = FieldsDict(loaded.stats);
  }
  const GcPause pause;
  TreeBuilder builder(*checkpoint, std::move(factory), std::move(options));
  return nb::make_tuple(builder.BuildWhole(), stats);
}

}  // namespace

void BindCheckpoint(nb::module_& module) {
  nb::class_<ByteSource>(module, "Source")
      .def_prop_ro("name",
                   [](const ByteSource& self) { return PathText(self.name()); })
      .def_prop_ro("size", &ByteSource::size)
      .def_prop_ro(
          "is_server",
          [](const ByteSource& self) { return self.Look({}).is_server(); })
      // The version of an object on a server (e.g. its ETag), or "".
      .def_prop_ro("version", [](const ByteSource& self) {
        return self.remote_stats().value_or(RemoteStats{}).version;
      });

  const auto open_source = [](const nb::str& path, bool mapped, nb::dict remote,
                              bool write_through, std::string variant,
                              const nb::str& base,
                              std::shared_ptr<SignedModel> signed_model,
                              const std::string& way) {
    const std::string uri = PathBytes(path);
    SourceOptions options;
    options.write_through = write_through;
    options.io = mapped ? IoMode::kMmap : IoMode::kPread;
    options.remote = RemoteOptionsOf(std::move(remote));
    options.variant = std::move(variant);
    options.base = PathBytes(base);
    options.signed_model = std::move(signed_model);
    if (const auto io = FromWord<IoMode>(way)) options.io = *io;
    const auto open = [&] { return OpenSource(uri, options); };
    return std::const_pointer_cast<ByteSource>(
        uri.find("://") != uri.npos ? Minding(open) : Unwrap(WithoutGil(open)));
  };
  module.def("open_source", open_source, nb::arg("uri"), nb::arg("mapped"),
             nb::arg("remote") = nb::dict(), nb::arg("write_through") = false,
             nb::arg("variant") = "", nb::arg("base") = "",
             nb::arg("signed") = nb::none(), nb::arg("way") = "");
  module.def("is_on_remote", [](const nb::str& path) {
    const std::string bytes = PathBytes(path);
    return WithoutGil([&] { return IsOnRemoteFileSystem(bytes); });
  });
  module.def("list_sources", [](std::vector<std::shared_ptr<ByteSource>> list) {
    return std::const_pointer_cast<ByteSource>(
        Unwrap(ListSources({list.begin(), list.end()})));
  });
  module.def("bytes_source", [](nb::handle bytes, std::string name) {
    return std::const_pointer_cast<ByteSource>(
        SourceOfBytes(bytes, std::move(name)));
  });
  module.def("file_object_source", [](nb::object reader, uint64_t size,
                                      std::string name, int parallel) {
    return std::const_pointer_cast<ByteSource>(MakeFileObjectSource(
        std::move(reader), size, std::move(name), parallel));
  });
  module.def("slice_source", [](std::shared_ptr<ByteSource> source,
                                uint64_t offset, uint64_t length) {
    return std::const_pointer_cast<ByteSource>(
        Unwrap(MakeSliceSource(std::move(source), offset, length)));
  });

  nb::class_<Checkpoint>(module, "Checkpoint")
      .def_prop_ro("format",
                   [](const Checkpoint& self) {
                     const auto name = Name(self.index().format);
                     return nb::str(name.data(), name.size());
                   })
      .def_prop_ro("facts",
                   [](const Checkpoint& self) {
                     nb::dict facts;
                     for (const Fact& fact : self.index().facts) {
                       facts[fact.name.c_str()] = FactObject(fact.value);
                     }
                     return facts;
                   })
      // The writer's metadata, or None if the format has no place for it.
      .def_prop_ro("metadata",
                   [](const Checkpoint& self) -> nb::object {
                     const auto& metadata = self.index().metadata;
                     if (!metadata.has_value()) return nb::none();
                     nb::dict dict;
                     for (const Fact& fact : *metadata) {
                       dict[nb::str(fact.name.c_str(), fact.name.size())] =
                           FactObject(fact.value);
                     }
                     return dict;
                   })
      // What `haulway info --json` prints.
      .def("info_json",
           [](const Checkpoint& self, const std::string& file) {
             return WithoutGil([&] { return InfoJson(self, file); });
           })
      .def("__len__",
           [](const Checkpoint& self) { return self.entries().size(); })
      .def("names", [](const Checkpoint& self) { return Names(self); })
      .def("find",
           [](const Checkpoint& self,
              const nb::str& name) -> std::optional<uint32_t> {
             Py_ssize_t size = 0;
             const char* const utf8 =
                 PyUnicode_AsUTF8AndSize(name.ptr(), &size);
             if (utf8 == nullptr) {  // Lone surrogates, which no name has.
               PyErr_Clear();
               return std::nullopt;
             }
             const TensorInfo* tensor =
                 self.Find({utf8, static_cast<size_t>(size)});
             if (tensor == nullptr) return std::nullopt;
             return static_cast<uint32_t>(tensor - self.index().tensors.data());
           })
      // Returns "; did you mean ...?" for a name that no tensor has, or "".
      .def("hint",
           [](const Checkpoint& self, const nb::str& name) -> std::string {
             Py_ssize_t size = 0;
             const char* const utf8 =
                 PyUnicode_AsUTF8AndSize(name.ptr(), &size);
             if (utf8 == nullptr) {  // As for find().
               PyErr_Clear();
               return "";
             }
             return HintOf({utf8, static_cast<size_t>(size)}, self.entries(),
                           [](const Entry& one) { return one.name; });
           })
      .def("rows",
           [](const Checkpoint& self) {
             nb::list rows;
             for (const Entry& entry : self.entries())
               rows.append(entry.tensor);
             return rows;
           })
      .def("check_object", &CheckObject)
      .def("tensor", &DescribeTensor)
      // Raises if a cast would change what the tensor means.
      .def("check_cast",
           [](const Checkpoint& self, uint32_t row) {
             Status status = self.CheckCast(row);
             if (!status.ok()) {
               Raise(std::move(status).Of(self.source().name()));
             }
           })
      .def("storage", &DescribeStorage)
      .def("storage_contents", &StorageContents)
      .def("tensor_count",
           [](const Checkpoint& self) { return self.index().tensors.size(); })
      .def("storage_count",
           [](const Checkpoint& self) { return self.index().storages.size(); })
      // The devices that the storages were saved from, without duplicates.
      .def("locations",
           [](const Checkpoint& self) {
             std::set<std::string_view> locations;
             for (const StorageInfo& storage : self.index().storages) {
               locations.insert(storage.location);
             }
             nb::list names;
             for (const std::string_view one : locations) {
               names.append(StrOf(one));
             }
             return names;
           })
      // Returns (the storage as a Memory, bytes read for it, or None if the
      // source has them in memory).
      .def("read_storage",
           [](const Checkpoint& self, uint32_t row) {
             const auto read_it = [&] { return self.ReadStorage(row); };
             Buffer bytes = ReadFrom(self.source(), read_it);
             const StorageInfo& info = self.index().storages[row];
             nb::object read = nb::none();
             if (!self.source().View(0, 0).has_value()) {
               read = nb::int_(info.frame_end - info.frame_offset);
             }
             return nb::make_tuple(MakeMemory(std::move(bytes)), read);
           })
      // Returns part of a storage as a Memory.
      .def("read_range",
           [](const Checkpoint& self, uint32_t row, uint64_t offset,
              uint64_t length) {
             Buffer bytes = Unwrap(AllocateBuffer(length));
             const auto read = [&]() -> Result<bool> {
               HAULWAY_TRY(
                   self.ReadStorageRange(row, offset, bytes.mutable_bytes()));
               return true;
             };
             if (length > 0) ReadFrom(self.source(), read);
             return MakeMemory(std::move(bytes));
           })
      // Reads several storages at once: (list of Memory, stats).
      .def(
          "load_storages",
          [](const Checkpoint& self, std::vector<uint32_t> rows,
             nb::dict loading, nb::object progress) {
            LoadedStorages loaded =
                Load(self, rows, LoadOptionsOf(std::move(loading)),
                     std::move(progress));
            nb::list memories;
            for (Buffer& buffer : loaded.buffers) {
              memories.append(MakeMemory(std::move(buffer)));
            }
            return nb::make_tuple(memories, FieldsDict(loaded.stats));
          },
          nb::arg("rows"), nb::arg("loading"), nb::arg("progress").none())
      .def(
          "build",
          [](std::shared_ptr<Checkpoint> self, nb::object factory,
             nb::object from_dlpack, nb::object bases, std::string encoding,
             nb::dict loading, nb::object progress) {
            return BuildTree(self, std::move(factory), std::move(from_dlpack),
                             std::move(bases), encoding, std::move(loading),
                             std::move(progress));
          },
          nb::arg("factory"), nb::arg("from_dlpack").none(),
          nb::arg("bases").none(), nb::arg("encoding"), nb::arg("loading"),
          nb::arg("progress").none());

  module.def(
      "open_checkpoint",
      [](std::shared_ptr<ByteSource> source, nb::dict opening,
         std::optional<int> retries, const NameFilter* names) {
        const OpenOptions options = OpenOptionsOf(std::move(opening));
        std::function<bool(std::string_view)> wanted;
        if (names != nullptr) {
          wanted = [names](std::string_view name) {
            return names->Mentions(name);
          };
        }
        const auto open = [&] {
          return Checkpoint::Open(std::move(source), options,
                                  retries.value_or(kDefaultRetries), wanted);
        };
        return std::const_pointer_cast<Checkpoint>(ReadFrom(*source, open));
      },
      nb::arg("source"), nb::arg("opening") = nb::dict(),
      nb::arg("retries").none() = nb::none(),
      nb::arg("names").none() = nb::none());
}

}  // namespace python
}  // namespace haulway
