// Design: the requirements of all formats are checked here once (names, shapes
// against bytes, views against storages), and views are resolved for formats
// that have none. So a format's lay_out() only places valid tensors. A view of
// memory that no other tensor uses is written in place if it is dense;
// otherwise its elements are gathered when they are written, tensor by tensor.
//
// Tried instead: copy all views before writing. That took as much memory as the
// model. Tensors that share memory are refused if the format cannot express
// that. Writing them twice silently would load as two tensors that no longer
// change together.

#include "haulway/save.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/name_index.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/settle_tensors.h"
#include "haulway/format.h"
#include "haulway/layout.h"
#include "save/layout_with.h"
#include "tensor/strided.h"

namespace haulway {

namespace {

Status CheckNames(const TensorsToWrite& tensors) {
  NameIndex names;
  names.Reserve(tensors.tensors.size());
  const auto name_of = [&](uint32_t i) -> std::string_view {
    return tensors.tensors[i].name;
  };
  for (uint32_t i = 0; i < tensors.tensors.size(); ++i) {
    const std::string& name = tensors.tensors[i].name;
    if (!IsUtf8(name)) {
      return Status(Code::kInvalidArgument,
                    fmt::format("name {} is not UTF-8", Quote(name)));
    }
    if (names.Add(name, i, name_of) != NameIndex::kNone) {
      return Status(Code::kInvalidArgument,
                    fmt::format("two tensors are named {}", Quote(name)));
    }
  }
  return Status();
}

// Returns the size of all elements in bytes. Fails if the shape is invalid or
// overflows.
Result<uint64_t> DenseBytes(const TensorToWrite& tensor) {
  bool fits = true;
  for (const int64_t size : tensor.shape) fits = fits && size >= 0;
  const std::optional<uint64_t> count =
      fits ? CountElements(tensor.shape) : std::nullopt;
  uint64_t bytes = 0;
  if (!count.has_value() ||
      !CheckedMultiply(*count, ItemBytes(tensor.dtype), &bytes)) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("shape [{}] has no size", fmt::join(tensor.shape, ", ")));
  }
  return bytes;
}

Status CheckBytes(const BytesToWrite& bytes, std::string_view what) {
  if (bytes.length != 0 && bytes.bytes == nullptr && bytes.source == nullptr) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} of {} bytes has neither memory nor a source",
                              what, bytes.length));
  }
  if (bytes.source != nullptr &&
      !RangeFits(bytes.source_offset, bytes.length, bytes.source->size())) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} bytes at {} end past the source's {}",
                              bytes.length, bytes.source_offset,
                              bytes.source->size()))
        .Of(bytes.source->name());
  }
  return Status();
}

Status CheckView(const TensorsToWrite& tensors, const TensorToWrite& tensor) {
  const StorageView& view = *tensor.view;
  if (view.storage >= tensors.storages.size()) {
    return Status(Code::kInvalidArgument,
                  fmt::format("a view of storage {}: there are {}",
                              view.storage, tensors.storages.size()));
  }
  bool fits = view.strides.size() == tensor.shape.size();
  for (const int64_t stride : view.strides) fits = fits && stride >= 0;
  const std::optional<uint64_t> extent =
      fits ? ElementExtent(tensor.shape, view.strides) : std::nullopt;
  uint64_t end = 0;
  if (!extent.has_value() || !CheckedAdd(view.offset, *extent, &end) ||
      !CheckedMultiply(end, ItemBytes(tensor.dtype), &end) ||
      (*extent != 0 && end > tensors.storages[view.storage].length)) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("shape [{}] with strides [{}] leaves its storage of {} "
                    "bytes",
                    fmt::join(tensor.shape, ", "),
                    fmt::join(view.strides, ", "),
                    tensors.storages[view.storage].length));
  }
  return Status();
}

Status CheckTensor(const TensorsToWrite& tensors, const TensorToWrite& tensor) {
  HAULWAY_ASSIGN(const uint64_t bytes, DenseBytes(tensor));
  if (tensor.view.has_value()) return CheckView(tensors, tensor);
  if (tensor.bytes.length != bytes) {
    return Status(
        Code::kInvalidArgument,
        fmt::format("dtype {} with shape [{}] needs {} bytes, found {}",
                    Name(tensor.dtype), fmt::join(tensor.shape, ", "), bytes,
                    tensor.bytes.length));
  }
  return CheckBytes(tensor.bytes, "a tensor");
}

Status Check(const TensorsToWrite& tensors, const FormatEntry& format,
             const SaveOptions& options) {
  if (!options.key.empty() && !format.can.encrypt) {
    return Status(Code::kUnsupported,
                  fmt::format("the format {} has no encryption", format.name));
  }
  if (tensors.metadata.has_value() && !format.can.metadata) {
    return Status(
        Code::kUnsupported,
        fmt::format("the format {} has no room for metadata", format.name));
  }
  if (!tensors.values.empty() && !format.can.values) {
    return Status(Code::kUnsupported,
                  fmt::format("the format {} has room for text only, not for "
                              "the value of {}",
                              format.name, Quote(tensors.values[0].name)));
  }
  HAULWAY_TRY(CheckNames(tensors));
  for (const BytesToWrite& storage : tensors.storages) {
    HAULWAY_TRY(CheckBytes(storage, "a storage"));
  }
  for (const TensorToWrite& tensor : tensors.tensors) {
    Status status = CheckTensor(tensors, tensor);
    if (!status.ok()) return std::move(status).In(Quote(tensor.name));
  }
  return Status();
}

// Gathers the elements of a view in row-major order.
Result<Buffer> Gather(const BytesToWrite& storage, const StorageView& view,
                      DType dtype, std::span<const int64_t> shape) {
  const uint64_t item = ItemBytes(dtype);
  const uint64_t begin = view.offset * item;
  const uint64_t extent = *ElementExtent(shape, view.strides) * item;
  Buffer read;
  const std::byte* first = nullptr;
  if (storage.bytes != nullptr) {
    first = storage.bytes + begin;
  } else {
    HAULWAY_ASSIGN(read, AllocateBuffer(extent));
    HAULWAY_TRY(storage.source->ReadAt(storage.source_offset + begin,
                                       read.mutable_bytes()));
    first = read.data();
  }
  HAULWAY_ASSIGN(Buffer dense, AllocateBuffer(*CountElements(shape) * item));
  GatherElements(first, shape, view.strides, item, dense.mutable_bytes());
  return dense;
}

// Returns the bytes of a view for a format without views: in place if the
// elements are dense, otherwise gathered when they are written.
Result<BytesToWrite> Densely(const TensorsToWrite& tensors,
                             const TensorToWrite& tensor) {
  const StorageView& view = *tensor.view;
  const BytesToWrite& storage = tensors.storages[view.storage];
  HAULWAY_ASSIGN(const uint64_t length, DenseBytes(tensor));
  if (length == 0) return BytesToWrite();
  BytesToWrite bytes = storage;
  bytes.length = length;
  if (IsContiguous(tensor.shape, view.strides)) {
    const uint64_t begin = view.offset * ItemBytes(tensor.dtype);
    if (bytes.bytes != nullptr) {
      bytes.bytes += begin;
    } else {
      bytes.source_offset += begin;
    }
    return bytes;
  }
  bytes.bytes = nullptr;
  bytes.source_offset = 0;
  bytes.source = MakeProducedSource(
      length,
      [storage, view, dtype = tensor.dtype, shape = tensor.shape] {
        return Gather(storage, view, dtype, shape);
      },
      tensor.name);
  return bytes;
}

// Replaces views by bytes. Fails if two tensors use the same storage.
Status Settle(TensorsToWrite* tensors, const FormatEntry& format) {
  std::map<uint32_t, std::string_view> known;
  for (TensorToWrite& tensor : tensors->tensors) {
    if (!tensor.view.has_value()) continue;
    HAULWAY_ASSIGN(tensor.bytes, Densely(*tensors, tensor));
    const uint32_t storage = tensor.view->storage;
    tensor.view.reset();
    if (tensor.bytes.length == 0) continue;
    const auto [first, fresh] = known.try_emplace(storage, tensor.name);
    if (!fresh) {
      return Status(
          Code::kUnsupported,
          fmt::format("{} and {} share memory, which {} files cannot express",
                      Quote(first->second), Quote(tensor.name), format.name));
    }
  }
  tensors->storages.clear();
  return Status();
}

// What keeps the bytes of tensors and storages alive.
using Owners = std::vector<std::shared_ptr<const void>>;

Owners OwnersOf(TensorsToWrite tensors) {
  Owners owners;
  // Most sources are those of many tensors.
  const auto add = [&](std::shared_ptr<const void> owner) {
    if (owner == nullptr) return;
    if (owners.empty() || owners.back() != owner) {
      owners.push_back(std::move(owner));
    }
  };
  const auto take = [&](BytesToWrite* bytes) {
    add(std::move(bytes->source));
    add(std::move(bytes->owner));
  };
  for (TensorToWrite& tensor : tensors.tensors) take(&tensor.bytes);
  for (BytesToWrite& storage : tensors.storages) take(&storage);
  return owners;
}

}  // namespace

Status SettleTensors(const FormatEntry& format, const SaveOptions& options,
                     TensorsToWrite* tensors) {
  HAULWAY_TRY(Check(*tensors, format, options));
  return format.can.views ? Status() : Settle(tensors, format);
}

Result<std::unique_ptr<const Layout>> LayOut(TensorsToWrite tensors,
                                             Format format,
                                             const SaveOptions& options) {
  const auto run = [&]() -> Result<std::unique_ptr<const Layout>> {
    const FormatEntry& entry = EntryOf(format);
    if (entry.lay_out == nullptr) {
      return FormatToWriteByName(entry.name).status();
    }
    HAULWAY_TRY(SettleTensors(entry, options, &tensors));
    HAULWAY_ASSIGN(auto laid_out, entry.lay_out(tensors, options));
    auto layout =
        std::make_unique<LayoutWith<Owners>>(OwnersOf(std::move(tensors)));
    layout->Take(std::move(laid_out));
    return std::unique_ptr<const Layout>(std::move(layout));
  };
  return OrNoMemory(run);
}

Result<WriteStats> Save(TensorsToWrite tensors, Format format, ByteSink& sink,
                        const SaveOptions& options) {
  const std::string name(sink.name());
  auto layout = LayOut(std::move(tensors), format, options);
  if (!layout.ok()) return std::move(layout).status().Of(name);
  return Write(**layout, sink, options.write);
}

}  // namespace haulway
