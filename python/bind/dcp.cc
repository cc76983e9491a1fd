// Bindings for distributed checkpoints: the content of `.metadata`, and where
// the chunks are stored.
//
// Design: the library parses and checks. Its results are converted to tuples in
// one pass, from which Python builds torch's classes. Data of other planners
// are converted by value, shared containers once.

#include "haulway/dcp.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/errors.h"
#include "base/gc_pause.h"
#include "base/gil.h"
#include "base/progress.h"
#include "bind/bindings.h"
#include "bind/loading.h"
#include "haulway/checkpoint.h"
#include "haulway/source.h"
#include "haulway/tree.h"

namespace nb = nanobind;

namespace haulway::python {

namespace {

// Builds a tuple; `make` returns the item with a given number.
template <class Make>
nb::object TupleOf(size_t size, const Make& make) {
  PyObject* const tuple = PyTuple_New(static_cast<Py_ssize_t>(size));
  if (tuple == nullptr) throw nb::python_error();
  nb::object made = nb::steal(tuple);
  for (size_t i = 0; i < size; ++i) {
    PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i),
                     nb::object(make(i)).release().ptr());
  }
  return made;
}

nb::object Numbers(std::span<const int64_t> numbers) {
  return TupleOf(numbers.size(),
                 [&](size_t i) { return nb::int_(numbers[i]); });
}

nb::object Text(std::string_view text) {
  return nb::str(text.data(), text.size());
}

nb::object TextOrNone(const std::optional<std::string_view>& text) {
  return text.has_value() ? Text(*text) : nb::object(nb::none());
}

// Converts plain values of a pickle: numbers, texts, tuples, lists and dicts.
// Any other object, even if the caller allowed its name, becomes None; as a
// key, it is left out with its value.
class PlainValues {
 public:
  explicit PlainValues(uint32_t max_depth) : max_depth_(max_depth) {}

  nb::object Of(const Value& value, uint32_t depth = 0) {
    if (depth > max_depth_) {
      Raise(Status(Code::kLimit, "planner_data is nested too deep"));
    }
    switch (value.kind()) {
      case Kind::kNone:
        return nb::none();
      case Kind::kBool:
        return nb::bool_(value.boolean());
      case Kind::kInt:
        return nb::int_(value.integer());
      case Kind::kFloat:
        return nb::float_(value.real());
      case Kind::kString:
        return Text(value.text());
      case Kind::kBytes:
        return nb::bytes(value.text().data(), value.text().size());
      case Kind::kTuple:
      case Kind::kList:
      case Kind::kDict:
        return Container(value, depth);
      default:
        return nb::none();
    }
  }

 private:
  nb::object Container(const Value& value, uint32_t depth) {
    const auto found = made_.find(value.identity());
    if (found != made_.end()) return found->second;
    if (value.is(Kind::kTuple)) {
      const auto items = value.sequence().items();
      nb::object tuple = TupleOf(
          items.size(), [&](size_t i) { return Of(items[i], depth + 1); });
      made_.emplace(value.identity(), tuple);
      return tuple;
    }
    if (value.is(Kind::kList)) {
      nb::list list;
      made_.emplace(value.identity(), list);
      for (const Value& item : value.sequence().items()) {
        list.append(Of(item, depth + 1));
      }
      return list;
    }
    nb::dict dict;
    made_.emplace(value.identity(), dict);
    for (const MappingItem& item : value.mapping().items()) {
      const nb::object key = Of(item.key, depth + 1);
      // All keys that became None would be one key.
      if (key.is_none() && !item.key.is(Kind::kNone)) continue;
      dict[key] = Of(item.value, depth + 1);
    }
    return dict;
  }

  const uint32_t max_depth_;
  std::unordered_map<const void*, nb::object> made_;
};

nb::object Entries(const dcp::Metadata& metadata) {
  std::vector<nb::object> files;
  files.reserve(metadata.files.size());
  for (const std::string_view file : metadata.files) {
    files.push_back(Text(file));
  }
  const auto place = [&](const dcp::StoredItem& item) -> nb::object {
    if (item.file == dcp::kNoFile) return nb::none();
    if (item.transforms.empty()) {
      return nb::make_tuple(files[item.file], item.offset, item.length);
    }
    return nb::make_tuple(files[item.file], item.offset, item.length,
                          TupleOf(item.transforms.size(), [&](size_t i) {
                            return Text(item.transforms[i]);
                          }));
  };
  const auto chunk_of = [&](const dcp::Chunk& chunk) {
    return nb::make_tuple(Numbers(chunk.offsets), Numbers(chunk.sizes),
                          place(chunk.item));
  };
  return TupleOf(metadata.entries.size(), [&](size_t i) {
    const dcp::StoredEntry& entry = metadata.entries[i];
    if (!entry.is_tensor) {
      const dcp::StoredObject& object = metadata.objects[entry.row];
      return nb::make_tuple(Text(object.name), place(object.item));
    }
    const dcp::StoredTensor& tensor = metadata.tensors[entry.row];
    const auto chunks = metadata.ChunksOf(tensor);
    const auto dtype = Name(tensor.dtype);
    nb::object strides = nb::none();
    if (tensor.strides.has_value()) strides = Numbers(*tensor.strides);
    return nb::make_tuple(
        Text(tensor.name), Text(dtype), Numbers(tensor.shape),
        tensor.requires_grad, static_cast<int>(tensor.memory_format),
        tensor.pin_memory, strides,
        TupleOf(chunks.size(), [&](size_t c) { return chunk_of(chunks[c]); }));
  });
}

nb::object Meta(const std::optional<dcp::StorageMeta>& meta) {
  if (!meta.has_value()) return nb::none();
  nb::list modules;
  for (const std::string_view module : meta->modules) {
    modules.append(Text(module));
  }
  return nb::make_tuple(TextOrNone(meta->checkpoint_id),
                        TextOrNone(meta->save_id), TextOrNone(meta->load_id),
                        modules);
}

// The content of a file `.metadata`, to open its directory.
struct DcpMetadata {
  std::shared_ptr<const dcp::MetadataFile> file;
};

nb::tuple MetadataOf(std::shared_ptr<ByteSource> source, nb::dict opening) {
  const OpenOptions options = OpenOptionsOf(std::move(opening));
  const auto read = [&] { return ReadDcpMetadata(*source, options); };
  const DcpMetadata parsed{ReadFrom(*source, read)};
  const dcp::Metadata& metadata = parsed.file->metadata;
  const GcPause pause;
  nb::object version = nb::none();
  if (!metadata.version.empty()) version = Text(metadata.version);
  return nb::make_tuple(
      Entries(metadata),
      PlainValues(options.limits.max_depth).Of(metadata.planner_data),
      Meta(metadata.storage_meta), version, parsed);
}

std::shared_ptr<Checkpoint> DirectoryOf(std::shared_ptr<ByteSource> source,
                                        const DcpMetadata& parsed,
                                        nb::dict opening) {
  const OpenOptions options = OpenOptionsOf(std::move(opening));
  return std::make_shared<Checkpoint>(ReadFrom(*source, [&] {
    return OpenDcpDirectory(std::move(source), parsed.file, options);
  }));
}

}  // namespace

void BindDcp(nb::module_& module) {
  nb::class_<DcpMetadata>(module, "DcpMetadata");
  module.def("open_dcp", &DirectoryOf, nb::arg("source"), nb::arg("metadata"),
             nb::arg("opening") = nb::dict(),
             "A checkpoint: the directory of a file .metadata that was read.");
  module.def(
      "dcp_metadata", &MetadataOf, nb::arg("source"),
      nb::arg("opening") = nb::dict(),
      "(entries, planner_data, storage_meta, version, all of it) of a file "
      ".metadata. An "
      "entry is (name, place), or (name, dtype, shape, requires_grad, memory "
      "format, pin_memory, strides, chunks) with (offsets, sizes, place) of "
      "each chunk; "
      "a place is (file, offset, length), with the descriptors of extensions "
      "that transformed it if there are any, or None for a chunk without "
      "elements. storage_meta is (checkpoint_id, save_id, load_id, modules) or "
      "None.");
  module.def(
      "read_transformed",
      [](std::shared_ptr<ByteSource> source, uint64_t offset, uint64_t length,
         std::vector<std::string> transforms, nb::dict opening) {
        const OpenOptions options = OpenOptionsOf(std::move(opening));
        const std::vector<std::string_view> names(transforms.begin(),
                                                  transforms.end());
        const Buffer bytes = ReadFrom(*source, [&] {
          return ReadTransformed(source, {0, offset, length, names},
                                 options.limits);
        });
        return nb::bytes(reinterpret_cast<const char*>(bytes.bytes().data()),
                         bytes.size());
      },
      nb::arg("source"), nb::arg("offset"), nb::arg("length"),
      nb::arg("transforms"), nb::arg("opening") = nb::dict(),
      "The bytes of an object that extensions transformed, as they were "
      "before.");
  module.def(
      "dcp_chunks",
      [](const Checkpoint& checkpoint) {
        const std::vector<StoredChunk> chunks =
            ReadFrom(checkpoint.source(),
                     [&] { return ListChunks(checkpoint.reader()); });
        nb::list list;
        for (const StoredChunk& chunk : chunks) {
          list.append(nb::make_tuple(chunk.tensor, Numbers(chunk.offsets),
                                     Numbers(chunk.sizes), chunk.file,
                                     chunk.offset, chunk.nbytes));
        }
        return list;
      },
      nb::arg("checkpoint"),
      "(tensor, offsets, sizes, file, offset, nbytes) of every chunk of a "
      "directory of torch.distributed.checkpoint: nbytes of the file from "
      "offset on are its elements, row-major.");
}

}  // namespace haulway::python
