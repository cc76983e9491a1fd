#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

#include "command.h"
#include "haulway/select.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct LsOptions : Options {
  bool natural = false;
};

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

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Takes the number that `text` begins with off it, without leading zeros.
std::string_view TakeNumber(std::string_view* text) {
  size_t size = 0;
  while (size < text->size() && IsDigit((*text)[size])) ++size;
  std::string_view digits = text->substr(0, size);
  text->remove_prefix(size);
  while (digits.size() > 1 && digits[0] == '0') digits.remove_prefix(1);
  return digits;
}

// Orders "layer.2" before "layer.10".
bool NaturalLess(std::string_view a, std::string_view b) {
  while (!a.empty() && !b.empty()) {
    if (IsDigit(a[0]) && IsDigit(b[0])) {
      const std::string_view left = TakeNumber(&a), right = TakeNumber(&b);
      if (left.size() != right.size()) return left.size() < right.size();
      if (left != right) return left < right;
    } else {
      if (a[0] != b[0]) return a[0] < b[0];
      a.remove_prefix(1);
      b.remove_prefix(1);
    }
  }
  return a.size() < b.size();
}

int LsOne(const LsOptions& options, const std::string& file, bool heading) {
  Result<std::shared_ptr<const ByteSource>> source = OpenInput(file);
  if (!source.ok()) return Fail(options, source.status());
  OpenOptions open = options.open;
  open.check_frames = true;
  const auto checkpoint = Checkpoint::Open(*source, open);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  const CheckpointIndex& index = checkpoint.value()->index();
  std::vector<Entry> entries;
  uint64_t total = 0;
  const auto names = NameFilter::Make(NamesOf(options));
  if (!names.ok()) return Fail(options, names.status());
  for (const Entry& entry : index.entries) {
    if (!names->Matches(entry.name)) continue;
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
  return !names->all() && entries.empty() ? kNoMatch : kDone;
}

Runner Add(CLI::App& app) {
  const auto options = MakeOptions<LsOptions>(app);
  AddFilters(app, *options);
  app.add_flag("--natural", options->natural, "Sort by name, 2 before 10");
  AddAllow(app, *options);
  AddKey(app, *options);
  AddFiles(app, *options);
  return {options, [options] {
            return ForEachFile(*options, [&](const auto& file, bool heading) {
              return LsOne(*options, file, heading);
            });
          }};
}

}  // namespace

extern const Verb kLs = {"ls", "List tensors",
                         "haulway ls model.pt --include 'layers.0.*'\n"
                         "haulway ls model.pt --exclude '/bias$/' --json\n"
                         "haulway ls checkpoints/ --natural",
                         Add};

}  // namespace haulway::cli
