// Design: a dict of tensors becomes a value tree of the calls that torch writes
// for them (_rebuild_tensor_v2, or v3 if the storage is untyped), and
// WritePickle() pickles it. Storages become records of an archive, numbered in
// the order in which they are met, as in torch. The result equals that of
// torch.save() byte for byte.
//
// Opcodes could be written without a tree, as for Python's objects
// (object_walker.cc). Here the tree determines which mentions are the same name
// and the same storage, and costs little compared with the payloads. A reshaped
// tensor is also a call, never a copy.

#include "torch/torch_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "haulway/pickle.h"
#include "haulway/tree.h"
#include "pickle/pickle_globals.h"
#include "save/layout_with.h"
#include "tensor/dtype_kind.h"
#include "tensor/tree_copy.h"

namespace haulway::torch {

namespace {

struct Records {
  std::vector<std::string> texts;
  std::vector<BytesToWrite> storages;
};

ArchiveRecord RecordOf(std::string name, const BytesToWrite& bytes) {
  static constexpr std::byte kNothing{};
  ArchiveRecord record{.name = std::move(name), .size = bytes.length};
  if (bytes.length == 0) {
    record.bytes = &kNothing;
  } else {
    record.bytes = bytes.bytes;
    record.source = bytes.source.get();
    record.source_offset = bytes.source_offset;
  }
  return record;
}

// Returns the strides of a dense tensor in row-major order, by torch's rules.
std::vector<int64_t> DenseStrides(std::span<const int64_t> shape) {
  std::vector<int64_t> strides(shape.size());
  int64_t next = 1;
  for (size_t i = shape.size(); i-- > 0;) {
    strides[i] = next;
    next *= std::max<int64_t>(shape[i], 1);
  }
  return strides;
}

// Returns whether torch saves tensors of this dtype as untyped bytes with a
// dtype (torch.storage._new_dtypes()): dtypes without a storage class, except
// one-byte integers.
bool IsNewDtype(DType dtype) {
  const DTypeInfo& info = Describe(dtype);
  const bool is_integer =
      info.kind == DTypeKind::kInt || info.kind == DTypeKind::kUInt;
  return info.storage_class.empty() && !info.torch_name.empty() &&
         !(is_integer && info.item_bytes == 1);
}

// A DictPickle builds the tree of a dict of tensors, and numbers storages in
// the order in which they are met.
class DictPickle {
 public:
  explicit DictPickle(const TensorsToWrite& tensors) : tensors_(tensors) {}

  Status Build() {
    auto* items = arena_.New<Mapping>();
    const size_t count = tensors_.tensors.size();
    items->data =
        static_cast<MappingItem*>(arena_.Allocate(count * sizeof(MappingItem)));
    items->size = items->capacity = static_cast<uint32_t>(count);
    rows_.resize(tensors_.storages.size());
    for (size_t i = 0; i < count; ++i) {
      const TensorToWrite& tensor = tensors_.tensors[i];
      Result<Value> value = TensorOf(tensor);
      if (!value.ok()) {
        return std::move(value).status().In(Quote(tensor.name));
      }
      items->data[i] = MappingItem{Value::Text(Kind::kString, tensor.name),
                                   *std::move(value)};
    }
    const Value& like = tensors_.like;
    if (like.is_mapping()) items->state = like.mapping().state;
    root_ = Value::Of(like.is_mapping() ? like.kind() : Kind::kDict, items);
    return Status();
  }

  // Builds the tree of one tensor instead.
  Status BuildOne(const TensorToWrite& tensor) {
    HAULWAY_ASSIGN(root_, TensorOf(tensor));
    return Status();
  }

  const Value& root() const { return root_; }
  std::vector<BytesToWrite> TakeStorages() { return std::move(storages_); }

 private:
  struct Row {
    std::optional<DType> dtype;  // None until the storage is met.
    Value key;
    uint64_t bytes = 0;
  };

  // Returns the call _rebuild_tensor_v2(storage, offset, size, stride,
  // requires_grad, hooks), or v3 with the dtype as well, as
  // Tensor._reduce_ex_internal() does.
  Result<Value> TensorOf(const TensorToWrite& tensor) {
    const bool is_new = IsNewDtype(tensor.dtype);
    if (!is_new && (Describe(tensor.dtype).storage_class.empty() ||
                    IsQuantized(tensor.dtype))) {
      return Status(Code::kUnsupported,
                    fmt::format("torch saves no plain tensor of dtype {}",
                                Name(tensor.dtype)));
    }
    Row fresh;
    Row* row = &fresh;
    if (tensor.view.has_value()) row = &rows_[tensor.view->storage];
    if (!row->dtype.has_value()) {
      AddStorage(tensor, row);
    } else if (row->dtype != tensor.dtype) {
      return Status(Code::kUnsupported,
                    fmt::format("torch cannot save a storage as two dtypes: "
                                "{} and {}",
                                Name(*row->dtype), Name(tensor.dtype)));
    }
    const uint64_t item = is_new ? 1 : ItemBytes(tensor.dtype);
    const Value id[] = {
        storage_,
        is_new ? GlobalOf("torch.storage", "UntypedStorage")
               : GlobalOf("torch",
                          std::string(Describe(tensor.dtype).storage_class)),
        row->key, cpu_, Value::Int(static_cast<int64_t>(row->bytes / item))};
    const Value persistent[] = {TupleOf(id), Value::Int(0)};
    std::vector<Value> args = {
        Value::Of(Kind::kPersistent, CopyItems(&arena_, persistent)),
        Value::Int(tensor.view.has_value()
                       ? static_cast<int64_t>(tensor.view->offset)
                       : 0),
        SizesOf(tensor.shape),
        SizesOf(tensor.view.has_value() ? tensor.view->strides
                                        : DenseStrides(tensor.shape)),
        Value::Bool(tensor.requires_grad),
        Value::Of(Kind::kOrderedDict, arena_.New<Mapping>())};
    if (is_new) {
      args.push_back(
          GlobalOf("torch", std::string(Describe(tensor.dtype).torch_name)));
    }
    auto* object = arena_.New<Object>();
    object->called = GlobalOf(
        "torch._utils", is_new ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    object->callable = &object->called.global();
    object->args = TupleOf(args);
    return Value::Of(object);
  }

  void AddStorage(const TensorToWrite& tensor, Row* row) {
    BytesToWrite bytes = tensor.bytes;
    if (tensor.view.has_value()) {
      bytes = tensors_.storages[tensor.view->storage];
      // Drop a partial element at the end; no tensor uses it.
      bytes.length -= bytes.length % ItemBytes(tensor.dtype);
    }
    row->dtype = tensor.dtype;
    row->key = Value::Text(Kind::kString,
                           arena_.Copy(fmt::format("{}", storages_.size())));
    row->bytes = bytes.length;
    storages_.push_back(std::move(bytes));
  }

  // Returns the same Global for the same name, so that it is written once.
  Value GlobalOf(std::string_view module, const std::string& name) {
    Global*& known = globals_[name];
    if (known == nullptr) {
      known = arena_.New<Global>();
      known->module = module;
      known->name = arena_.Copy(name);
    }
    return Value::Of(known);
  }

  Value SizesOf(std::span<const int64_t> sizes) {
    std::vector<Value> values;
    values.reserve(sizes.size());
    for (const int64_t size : sizes) values.push_back(Value::Int(size));
    return TupleOf(values);
  }

  Value TupleOf(std::span<const Value> items) {
    return Value::Of(Kind::kTuple, CopyItems(&arena_, items));
  }

  const TensorsToWrite& tensors_;
  TreeArena arena_;
  const Value storage_ = Value::Text(Kind::kString, "storage");
  const Value cpu_ = Value::Text(Kind::kString, "cpu");
  std::map<std::string, Global*> globals_;
  std::vector<Row> rows_;
  std::vector<BytesToWrite> storages_;
  Value root_;
};

// Returns the archive's folder: torch names it after the file if that name is
// ASCII.
Result<std::string> FolderOf(std::string_view path) {
  const bool is_ascii = std::ranges::all_of(
      path, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (path.empty() || !is_ascii) return std::string("archive");
  return ArchiveNameOf(path);
}

}  // namespace

Result<std::unique_ptr<const Layout>> LayOutCheckpoint(
    std::string pickle, std::vector<BytesToWrite> storages,
    const ArchiveWriterOptions& options) {
  const bool little = std::endian::native == std::endian::little;
  auto layout = std::make_unique<LayoutWith<Records>>(Records{
      .texts = {std::move(pickle), "1", std::to_string(options.alignment),
                little ? "little" : "big", "3\n"},
      .storages = std::move(storages)});
  const auto& [texts, stored] = layout->held();
  const auto text = [&texts = texts](std::string name, size_t i) {
    const auto bytes = std::as_bytes(std::span(texts[i]));
    return RecordOf(std::move(name),
                    {.length = bytes.size(), .bytes = bytes.data()});
  };
  std::vector<ArchiveRecord> records;
  records.reserve(stored.size() + texts.size());
  records.push_back(text("data.pkl", 0));
  records.push_back(text(".format_version", 1));
  records.push_back(text(".storage_alignment", 2));
  records.push_back(text("byteorder", 3));
  for (const BytesToWrite& storage : stored) {
    records.push_back(
        RecordOf(fmt::format("data/{}", records.size() - 4), storage));
  }
  records.push_back(text("version", 4));
  HAULWAY_ASSIGN(auto inner, LayOutArchive(std::move(records), options));
  layout->Take(std::move(inner));
  return std::unique_ptr<const Layout>(std::move(layout));
}

Result<std::unique_ptr<const Layout>> LayOutTensors(
    const TensorsToWrite& tensors, const SaveOptions& options) {
  ArchiveWriterOptions archive;
  HAULWAY_ASSIGN(archive.archive_name, FolderOf(options.path));
  if (options.alignment.has_value()) archive.alignment = *options.alignment;
  archive.compute_crc32 = options.checksums;
  DictPickle dict(tensors);
  HAULWAY_TRY(dict.Build());
  HAULWAY_ASSIGN(std::string pickle, WritePickle(dict.root()));
  return LayOutCheckpoint(std::move(pickle), dict.TakeStorages(), archive);
}

Result<std::unique_ptr<const Layout>> LayOutTensor(
    const TensorToWrite& tensor, const ArchiveWriterOptions& options) {
  const TensorsToWrite none;
  DictPickle pickle(none);
  HAULWAY_TRY(pickle.BuildOne(tensor));
  HAULWAY_ASSIGN(std::string text, WritePickle(pickle.root()));
  return LayOutCheckpoint(std::move(text), pickle.TakeStorages(), options);
}

}  // namespace haulway::torch
