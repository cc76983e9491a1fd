#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "command.h"
#include "filter.h"
#include "output.h"

namespace haulway::cli {
namespace {

// The file that holds a byte of the source, where there are several.
const Part* PartAt(const CheckpointIndex& index, uint64_t offset) {
  const auto after =
      std::ranges::upper_bound(index.parts, offset, {}, &Part::offset);
  return after == index.parts.begin() ? nullptr : &*(after - 1);
}

const Part* PartOf(const CheckpointIndex& index, const TensorInfo& tensor) {
  if (tensor.storage == kNoStorage) return nullptr;
  return PartAt(index, index.storages[tensor.storage].offset);
}

std::optional<uint64_t> FileOffset(const CheckpointIndex& index,
                                   const TensorInfo& tensor) {
  if (tensor.kind == TensorKind::kMeta || tensor.storage == kNoStorage) {
    return std::nullopt;
  }
  const StorageInfo& storage = index.storages[tensor.storage];
  if (storage.encoding != Encoding::kRaw) return std::nullopt;
  const Part* part = PartOf(index, tensor);
  return storage.offset - (part == nullptr ? 0 : part->offset) +
         tensor.storage_offset * ItemBytes(tensor.dtype);
}

// Where the tensor begins, or why that cannot be said.
std::string Place(const CheckpointIndex& index, const TensorInfo& tensor) {
  const std::optional<uint64_t> offset = FileOffset(index, tensor);
  if (offset.has_value()) return std::to_string(*offset);
  if (tensor.kind == TensorKind::kMeta) return "meta";
  if (tensor.storage == kNoStorage) return "-";
  const Encoding encoding = index.storages[tensor.storage].encoding;
  return encoding == Encoding::kEncrypted ? "encrypted" : "-";
}

std::string_view Kind(TensorKind kind) {
  switch (kind) {
    case TensorKind::kMeta:
      return "meta";
    case TensorKind::kStorage:
      return "storage";
    default:
      return "dense";
  }
}

void PrintJson(const std::string& file, const CheckpointIndex& index,
               const std::vector<Entry>& entries, uint64_t total) {
  Json json;
  json.Begin('{').Key("file").Text(file).Key("format").Text(Name(index.format));
  json.Key("tensors").Begin('[');
  for (const Entry& entry : entries) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    json.Begin('{').Key("name").Text(entry.name);
    json.Key("dtype").Text(Name(tensor.dtype));
    json.Key("shape").Numbers(ElementShape(tensor.dtype, tensor.shape));
    json.Key("strides").Numbers(tensor.strides);
    json.Key("nbytes").Number(tensor.nbytes);
    json.Key("offset").Byte(FileOffset(index, tensor)).Key("storage");
    if (tensor.storage == kNoStorage) {
      json.Raw("null");
    } else {
      json.Text(index.storages[tensor.storage].key);
    }
    if (const Part* part = PartOf(index, tensor)) {
      json.Key("file").Text(part->name);
    }
    json.Key("requires_grad").Raw(tensor.requires_grad ? "true" : "false");
    json.Key("kind").Text(Kind(tensor.kind)).End('}');
  }
  json.End(']').Key("total_bytes").Number(total).End('}').Print();
}

void PrintTable(const Options& options, const CheckpointIndex& index,
                const std::vector<Entry>& entries, uint64_t total) {
  std::vector<uint64_t> uses(index.storages.size());
  for (const Entry& entry : index.entries) {
    const uint32_t row = index.tensors[entry.tensor].storage;
    if (row != kNoStorage) ++uses[row];
  }
  Table table("<<<>>>");
  table.Add({"name", "dtype", "shape", "bytes", "offset", "storage"});
  std::set<uint32_t> storages;
  uint64_t unique = 0;
  for (const Entry& entry : entries) {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    std::string storage = "-";
    if (tensor.storage != kNoStorage) {
      const StorageInfo& info = index.storages[tensor.storage];
      storage = Escape(info.key) + (uses[tensor.storage] > 1 ? " shared" : "");
      if (storages.insert(tensor.storage).second) unique += info.nbytes;
    }
    table.Add({Escape(entry.name), std::string(Name(tensor.dtype)),
               Shape(ElementShape(tensor.dtype, tensor.shape)),
               Size(tensor.nbytes, options.bytes), Place(index, tensor),
               storage});
  }
  table.Print();
  fmt::print("{} tensors, {}; {} storages, {}\n", entries.size(),
             Size(total, options.bytes), storages.size(),
             Size(unique, options.bytes));
}

int LsOne(const Options& options, const std::string& file, bool heading) {
  Result<std::shared_ptr<const ByteSource>> source = OpenInput(file);
  if (!source.ok()) return Fail(options, source.status());
  OpenOptions open = options.open;
  open.check_frames = true;
  const auto checkpoint = Checkpoint::Open(*source, open);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  const CheckpointIndex& index = checkpoint.value()->index();
  std::vector<Entry> entries;
  uint64_t total = 0;
  for (const Entry& entry : index.entries) {
    if (!Selected(entry.name, options.include, options.exclude)) continue;
    entries.push_back(entry);
    total += index.tensors[entry.tensor].nbytes;
  }
  if (options.natural) {
    std::ranges::stable_sort(entries, [](const Entry& a, const Entry& b) {
      return NaturalLess(a.name, b.name);
    });
  }
  if (options.json) {
    PrintJson(file, index, entries, total);
  } else {
    if (heading) fmt::print("{}:\n", Escape(file));
    PrintTable(options, index, entries, total);
  }
  const bool filtered = !options.include.empty() || !options.exclude.empty();
  return filtered && entries.empty() ? kNoMatch : kDone;
}

}  // namespace

int Ls(const Options& options) { return ForEachFile(options, LsOne); }

}  // namespace haulway::cli
