// Design: a row per entry, from the index alone, so no payload is read. The
// offset of a tensor is computed; if there is none, the row says why (inflated,
// encrypted). With --stats, one call measures the tensors, several at a time,
// from a source that is not mapped, because bytes read from a mapping count as
// this program's memory. To align the columns, each row is made twice, and none
// is kept; JSON is one object per line.
//
// Alternative not taken: print rows as they come. Column widths would change.
// Names from files are escaped, because a terminal executes control sequences.

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/compare.h"
#include "haulway/select.h"
#include "ls_tree.h"
#include "no_match.h"
#include "output.h"
#include "progress.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct LsOptions : Options {
  bool natural = false, tree = false, stats = false;
  int depth = 1000;  // More than the parts of any name.
  TensorStatsOptions measure;
};

// Parallel to the entries; empty if not requested.
using Stats = std::vector<std::optional<TensorStats>>;

// Returns the file that contains a byte of the source, if there are several
// files.
const Part* PartAt(const CheckpointIndex& index, uint64_t offset) {
  const auto after =
      std::ranges::upper_bound(index.parts, offset, {}, &Part::offset);
  return after == index.parts.begin() ? nullptr : &*(after - 1);
}

const Part* PartOf(const CheckpointIndex& index, const TensorInfo& tensor) {
  if (tensor.storage == kNoStorage) return nullptr;
  return PartAt(index, index.storages[tensor.storage].offset);
}

// Returns nullopt for a tensor whose bytes are not in the file as they are.
std::optional<uint64_t> FileOffset(const Checkpoint& checkpoint,
                                   const TensorInfo& tensor) {
  const CheckpointIndex& index = checkpoint.index();
  if (tensor.kind == TensorKind::kMeta || tensor.storage == kNoStorage) {
    return std::nullopt;
  }
  const StorageInfo& storage = index.storages[tensor.storage];
  if (storage.encoding != Encoding::kRaw) return std::nullopt;
  if (storage.offset >= checkpoint.computed_from()) return std::nullopt;
  const Part* part = PartOf(index, tensor);
  return storage.offset - (part == nullptr ? 0 : part->offset) +
         tensor.storage_offset * ItemBytes(tensor.dtype);
}

// Returns the offset of the tensor, or why there is none.
std::string Place(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const CheckpointIndex& index = checkpoint.index();
  const std::optional<uint64_t> offset = FileOffset(checkpoint, tensor);
  if (offset.has_value()) return std::to_string(*offset);
  if (tensor.kind == TensorKind::kMeta) return "meta";
  if (tensor.storage == kNoStorage) return "-";
  const Encoding encoding = index.storages[tensor.storage].encoding;
  if (encoding == Encoding::kDelta) return "delta";
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

void AddStats(const std::optional<TensorStats>& stats, Json* json) {
  json->Key("stats");
  if (!stats.has_value()) {
    json->Raw("null");
    return;
  }
  json->Begin('{').Fields(*stats).End('}');
}

// Adds of which tensor a process holds a part. The storage may be longer.
void AddSharding(const CheckpointIndex& index, const TensorInfo& tensor,
                 Json* json) {
  const Sharding& sharding = index.shardings[tensor.sharding];
  json->Key("global_shape").Numbers(sharding.shape);
  json->Key("placements").Begin('[');
  for (const Placement& placement : sharding.placements) {
    json->Text(ToString(placement));
  }
  json->End(']').Key("storage_bytes");
  json->Number(
      tensor.storage == kNoStorage ? 0 : index.storages[tensor.storage].nbytes);
}

void PrintJson(const LsOptions& options, const std::string& file,
               const Checkpoint& checkpoint, const std::vector<Entry>& entries,
               const Stats& stats, uint64_t total) {
  const CheckpointIndex& index = checkpoint.index();
  Json json;
  json.Begin('{')
      .Key("file")
      .Text(ShownName(file))
      .Key("format")
      .Text(Name(index.format));
  json.Key("tensors").Begin('[');
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    const TensorInfo& tensor = index.tensors[entry.tensor];
    json.Begin('{').Key("name").Text(entry.name);
    json.Key("dtype").Text(Name(tensor.dtype));
    json.Key("shape").Numbers(ElementShape(tensor.dtype, tensor.shape));
    json.Key("strides").Numbers(tensor.strides);
    json.Key("nbytes").Number(tensor.nbytes);
    json.Key("offset").Value(FileOffset(checkpoint, tensor)).Key("storage");
    if (tensor.storage == kNoStorage) {
      json.Raw("null");
    } else {
      json.Text(index.storages[tensor.storage].key);
    }
    if (const Part* part = PartOf(index, tensor)) {
      json.Key("file").Text(part->name);
    }
    if (tensor.sharding != kNoSharding) AddSharding(index, tensor, &json);
    json.Key("requires_grad").Raw(tensor.requires_grad ? "true" : "false");
    if (!stats.empty()) AddStats(stats[i], &json);
    json.Key("kind").Text(Kind(tensor.kind)).End('}');
    json.Flush();
  }
  json.End(']');
  if (options.tree) AddModules(index, entries, options.depth, &json);
  json.Key("total_bytes").Number(total).End('}').Print();
}

void PrintTable(const Options& options, const Checkpoint& checkpoint,
                const std::vector<Entry>& entries, uint64_t total) {
  const CheckpointIndex& index = checkpoint.index();
  std::vector<uint32_t> uses(index.storages.size());
  for (const Entry& entry : index.entries) {
    const uint32_t row = index.tensors[entry.tensor].storage;
    if (row != kNoStorage) ++uses[row];
  }
  Table table("<<<>>>");
  const std::vector<std::string> head = {"name",  "dtype",  "shape",
                                         "bytes", "offset", "storage"};
  const auto row_of = [&](const Entry& entry) -> std::vector<std::string> {
    const TensorInfo& tensor = index.tensors[entry.tensor];
    std::string storage = "-";
    if (tensor.storage != kNoStorage) {
      storage = Escape(index.storages[tensor.storage].key) +
                (uses[tensor.storage] > 1 ? " shared" : "");
    }
    return {Escape(entry.name),
            std::string(Name(tensor.dtype)),
            Shape(ElementShape(tensor.dtype, tensor.shape)),
            Size(tensor.nbytes, options.bytes),
            Place(checkpoint, tensor),
            storage};
  };
  table.Measure(head);
  for (const Entry& entry : entries) table.Measure(row_of(entry));
  table.PrintRow(head);
  std::vector<bool> seen(index.storages.size());
  uint64_t storages = 0;
  uint64_t unique = 0;
  for (const Entry& entry : entries) {
    table.PrintRow(row_of(entry));
    const uint32_t row = index.tensors[entry.tensor].storage;
    if (row == kNoStorage || seen[row]) continue;
    seen[row] = true;
    ++storages;
    unique += index.storages[row].nbytes;
  }
  fmt::print("{}, {}; {}, {}\n", Counted(entries.size(), "tensor"),
             Size(total, options.bytes), Counted(storages, "storage"),
             Size(unique, options.bytes));
}

void PrintStats(const Options& options, const CheckpointIndex& index,
                const std::vector<Entry>& entries, const Stats& stats) {
  Table table("<<<>>>>>>");
  table.Add(
      {"name", "dtype", "shape", "min", "max", "mean", "std", "nan", "inf"});
  uint64_t total = 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    const TensorInfo& tensor = index.tensors[entries[i].tensor];
    total += tensor.nbytes;
    std::vector<std::string> row = {
        Escape(entries[i].name), std::string(Name(tensor.dtype)),
        Shape(ElementShape(tensor.dtype, tensor.shape))};
    if (stats[i].has_value()) {
      for (const double value :
           {stats[i]->min, stats[i]->max, stats[i]->mean, stats[i]->std}) {
        row.push_back(fmt::format("{:.5g}", value));
      }
      row.push_back(fmt::format("{}", stats[i]->nan));
      row.push_back(fmt::format("{}", stats[i]->inf));
    }
    row.resize(9, "-");
    table.Add(std::move(row));
  }
  table.Print();
  fmt::print("{}, {}\n", Counted(entries.size(), "tensor"),
             Size(total, options.bytes));
}

Result<Stats> Measure(const LsOptions& options, const Checkpoint& checkpoint,
                      const std::string& file,
                      const std::vector<Entry>& entries) {
  std::vector<uint32_t> tensors;
  for (const Entry& entry : entries) tensors.push_back(entry.tensor);
  TensorStatsOptions measure = options.measure;
  measure.cancel = &interrupted;
  measure.progress = Progress(file, options.no_progress);
  return MeasureTensors(checkpoint, tensors, measure);
}

int LsOne(const LsOptions& options, const std::string& file, bool heading) {
  Result<std::shared_ptr<const ByteSource>> source =
      OpenModel(options, file, options.stats ? IoMode::kPread : IoMode::kMmap);
  if (!source.ok()) return Fail(options, source.status());
  OpenOptions open = options.open;
  // On a server, every frame would be a request.
  open.check_frames = !(*source)->Look({}).is_server();
  const auto checkpoint = OpenChosen(*source, open, options);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  const Status compared = CompareSigned(SignatureScope::kRead);
  if (!compared.ok()) return Fail(options, compared);
  const CheckpointIndex& index = checkpoint.value()->index();
  std::vector<Entry> entries;
  uint64_t total = 0;
  const auto names = NameFilter::Make(NamesOf(options));
  if (!names.ok()) return Fail(options, names.status());
  const Status used = names->CheckUsed({checkpoint->get()});
  if (!used.ok()) return Fail(options, used);
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
  Stats stats;
  if (options.stats) {
    auto measured = Measure(options, **checkpoint, file, entries);
    if (!measured.ok()) return Fail(options, measured.status());
    stats = *std::move(measured);
  }
  if (options.json) {
    PrintJson(options, file, **checkpoint, entries, stats, total);
    return !names->all() && entries.empty() ? NoMatch(file) : kDone;
  }
  if (heading) fmt::print("{}:\n", Escape(ShownName(file)));
  if (options.tree) {
    PrintTree(index, entries, options.depth, options.bytes);
  } else if (options.stats) {
    PrintStats(options, index, entries, stats);
  } else {
    PrintTable(options, **checkpoint, entries, total);
  }
  return !names->all() && entries.empty() ? NoMatch(file) : kDone;
}

Runner AddLs(CLI::App& app) {
  const auto options = MakeOptions<LsOptions>(app);
  AddBytes(app, *options);
  AddFilters(app, *options);
  app.add_flag("--natural", options->natural, "Sort by name, 2 before 10");
  CLI::Option* tree = app.add_flag("--tree", options->tree,
                                   "Group by module, with sizes and counts");
  app.add_option("--depth", options->depth,
                 "Depth of --tree, in parts of names")
      ->check(CheckPositive)
      ->needs(tree);
  app.add_flag("--stats", options->stats,
               "Read every tensor and print statistics of its elements");
  AddFields(app, &options->measure);
  AddProgress(app, *options);
  AddAllow(app, *options);
  AddKey(app, *options);
  AddFiles(app, *options);
  AddDequantize(app, *options);
  AddNaming(app, *options);
  AddSignature(app);
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
                         "haulway ls model.pt --tree --depth 2\n"
                         "haulway ls model.pt --stats\n"
                         "haulway ls checkpoints/ --natural",
                         AddLs,
                         /*cancels=*/true};

}  // namespace haulway::cli
