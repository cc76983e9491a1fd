// Design: a dict of tensors is pickled call by call, as torch writes them
// (_rebuild_tensor_v2, or v3 if the storage is untyped). Storages become
// records of an archive, numbered in the order in which they are met, as in
// torch. The result equals that of torch.save() byte for byte.
//
// Tried instead: a tree of values for WritePickle(). Every tensor was a dozen
// values, which took more memory than all else that is known of a tensor.

#include "torch/torch_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "base/text.h"
#include "haulway/pickle.h"
#include "haulway/tree.h"
#include "pickle/pickle_tree_writer.h"
#include "save/layout_with.h"
#include "tensor/dtype_kind.h"

namespace haulway::torch {

namespace {

struct Records {
  std::vector<std::string> texts;
  // What keeps the bytes of the storages alive.
  std::vector<std::shared_ptr<const void>> owners;
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

// A TensorPickle writes the pickle of tensors, and numbers storages in the
// order in which they are met.
class TensorPickle {
 public:
  explicit TensorPickle(const TensorsToWrite& tensors)
      : tensors_(tensors), rows_(tensors.storages.size()) {}

  Status WriteDict() {
    const std::vector<TensorToWrite>& tensors = tensors_.tensors;
    uint64_t bytes = 0;
    for (const TensorToWrite& tensor : tensors) {
      bytes += kMostCallBytes + tensor.name.size() +
               2 * kMostSizeBytes * tensor.shape.size();
    }
    opcodes().Reserve(bytes);
    storages_.reserve(std::max(rows_.size(), tensors.size()));
    return tree_.SaveDictOf(
        tensors_.like, tensors.size(), [&](size_t i) -> Status {
          opcodes().Unicode(tensors[i].name);
          opcodes().PutUnshared();
          Status status = WriteTensor(tensors[i]);
          if (status.ok()) return status;
          return std::move(status).In(Quote(tensors[i].name));
        });
  }

  // Writes the call _rebuild_tensor_v2(storage, offset, size, stride,
  // requires_grad, hooks), or v3 with the dtype as well, as
  // Tensor._reduce_ex_internal() does.
  Status WriteTensor(const TensorToWrite& tensor) {
    const bool is_new = IsNewDtype(tensor.dtype);
    if (!is_new && (Describe(tensor.dtype).storage_class.empty() ||
                    IsQuantized(tensor.dtype))) {
      return Status(Code::kUnsupported,
                    fmt::format("torch saves no plain tensor of dtype {}",
                                Name(tensor.dtype)));
    }
    SaveGlobal("torch._utils",
               is_new ? "_rebuild_tensor_v3" : "_rebuild_tensor_v2");
    opcodes().Mark();
    HAULWAY_TRY(WriteStorage(tensor, is_new));
    const bool is_view = tensor.view.has_value();
    opcodes().Int(is_view ? static_cast<int64_t>(tensor.view->offset) : 0);
    WriteSizes(tensor.shape);
    WriteSizes(is_view ? tensor.view->strides : DenseStrides(tensor.shape));
    opcodes().Bool(tensor.requires_grad);
    tree_.SaveEmptyOrderedDict();
    if (is_new) SaveGlobal("torch", Describe(tensor.dtype).torch_name);
    EndTuple(is_new ? 7 : 6);
    opcodes().Reduce();
    opcodes().PutUnshared();
    return Status();
  }

  std::string Finish() { return tree_.Finish(); }
  std::vector<BytesToWrite> TakeStorages() { return std::move(storages_); }

 private:
  // About the bytes of a call without the name and the sizes, and of a size.
  static constexpr uint64_t kMostCallBytes = 112;
  static constexpr uint64_t kMostSizeBytes = 5;

  struct Row {
    std::optional<DType> dtype;  // None until the storage is met.
    uint32_t key = 0;            // Number of its key in the pickle.
    uint64_t bytes = 0;
  };

  PickleWriter& opcodes() { return tree_.opcodes(); }

  void EndTuple(size_t count) {
    opcodes().Tuple(count);
    if (count > 0) opcodes().PutUnshared();
  }

  // Writes ("storage", class, key, "cpu", number of elements) as a persistent
  // id.
  Status WriteStorage(const TensorToWrite& tensor, bool is_new) {
    Row fresh;
    Row* row = &fresh;
    if (tensor.view.has_value()) row = &rows_[tensor.view->storage];
    if (row->dtype.has_value() && row->dtype != tensor.dtype) {
      return Status(Code::kUnsupported,
                    fmt::format("torch cannot save a storage as two dtypes: "
                                "{} and {}",
                                Name(*row->dtype), Name(tensor.dtype)));
    }
    opcodes().Mark();
    HAULWAY_TRY(tree_.Save(storage_));
    if (is_new) {
      SaveGlobal("torch.storage", "UntypedStorage");
    } else {
      SaveGlobal("torch", Describe(tensor.dtype).storage_class);
    }
    if (row->dtype.has_value()) {
      opcodes().GetNumber(row->key);
    } else {
      AddStorage(tensor, row);
    }
    HAULWAY_TRY(tree_.Save(cpu_));
    const uint64_t item = is_new ? 1 : ItemBytes(tensor.dtype);
    opcodes().Int(static_cast<int64_t>(row->bytes / item));
    EndTuple(5);
    opcodes().BinPersId();
    return Status();
  }

  void AddStorage(const TensorToWrite& tensor, Row* row) {
    BytesToWrite bytes = tensor.bytes;
    if (tensor.view.has_value()) {
      bytes = tensors_.storages[tensor.view->storage];
      // Drop a partial element at the end; no tensor uses it.
      bytes.length -= bytes.length % ItemBytes(tensor.dtype);
    }
    row->dtype = tensor.dtype;
    row->key = opcodes().memo_count();
    row->bytes = bytes.length;
    opcodes().Unicode(fmt::format("{}", storages_.size()));
    opcodes().PutUnshared();
    storages_.push_back(std::move(bytes));
  }

  void SaveGlobal(std::string_view module, std::string_view name) {
    Global& global = globals_[name];
    global.module = module;
    global.name = name;
    tree_.SaveGlobal(global);
  }

  void WriteSizes(std::span<const int64_t> sizes) {
    if (PickleWriter::TupleNeedsMark(sizes.size())) opcodes().Mark();
    for (const int64_t size : sizes) opcodes().Int(size);
    EndTuple(sizes.size());
  }

  const TensorsToWrite& tensors_;
  pickle::TreeWriter tree_{PickleWriteOptions()};
  const Value storage_ = Value::Text(Kind::kString, "storage");
  const Value cpu_ = Value::Text(Kind::kString, "cpu");
  std::map<std::string_view, Global> globals_;  // By name, in tables.
  std::vector<Row> rows_;                       // Parallel to storages.
  std::vector<BytesToWrite> storages_;
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
  Records held{
      .texts = {std::move(pickle), "1", std::to_string(options.alignment),
                little ? "little" : "big", "3\n"},
      .owners = {}};
  // Most sources are those of many storages.
  const auto keep = [&](const std::shared_ptr<const void>& owner) {
    if (owner == nullptr) return;
    if (held.owners.empty() || held.owners.back() != owner) {
      held.owners.push_back(owner);
    }
  };
  for (const BytesToWrite& storage : storages) {
    keep(storage.source);
    keep(storage.owner);
  }
  auto layout = std::make_unique<LayoutWith<Records>>(std::move(held));
  const std::vector<std::string>& texts = layout->held().texts;
  const auto text = [&texts](std::string name, size_t i) {
    const auto bytes = std::as_bytes(std::span(texts[i]));
    return RecordOf(std::move(name),
                    {.length = bytes.size(), .bytes = bytes.data()});
  };
  std::vector<ArchiveRecord> records;
  records.reserve(storages.size() + texts.size());
  records.push_back(text("data.pkl", 0));
  records.push_back(text(".format_version", 1));
  records.push_back(text(".storage_alignment", 2));
  records.push_back(text("byteorder", 3));
  for (const BytesToWrite& storage : storages) {
    records.push_back(
        RecordOf(fmt::format("data/{}", records.size() - 4), storage));
  }
  records.push_back(text("version", 4));
  storages = {};  // Their memory is needed for the layout.
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
  TensorPickle pickle(tensors);
  HAULWAY_TRY(pickle.WriteDict());
  return LayOutCheckpoint(pickle.Finish(), pickle.TakeStorages(), archive);
}

Result<std::unique_ptr<const Layout>> LayOutTensor(
    const TensorToWrite& tensor, const ArchiveWriterOptions& options) {
  const TensorsToWrite none;
  TensorPickle pickle(none);
  HAULWAY_TRY(pickle.WriteTensor(tensor));
  return LayOutCheckpoint(pickle.Finish(), pickle.TakeStorages(), options);
}

}  // namespace haulway::torch
