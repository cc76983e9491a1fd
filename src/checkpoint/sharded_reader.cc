// Design: each shard is opened by its own format's reader, several in parallel,
// and they are joined (joined_reader.h) to one index over one concatenated
// source. The engine then loads them like any file. The weight_map of an index
// is compared with the shards' contents in both directions, so a shard from
// another run is reported. Lists of files have no map; instead, names must be
// unique.
//
// Alternative not taken: load shard after shard. Requests could not be planned
// over all shards, and the end of each would leave threads idle. An index
// within an index is refused, because nothing limits the depth.

#include "checkpoint/sharded_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/is_of_source.h"
#include "base/name_index.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/dcp_shards.h"
#include "checkpoint/format_registry.h"
#include "checkpoint/joined_reader.h"
#include "checkpoint/sharded_index.h"
#include "checkpoint/version_chain.h"
#include "dcp/dcp_reader.h"
#include "delta/version_facts.h"
#include "format/flat_reader.h"
#include "haulway/format.h"
#include "io/name_watch.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

// How often shards are opened that saves replace meanwhile.
constexpr int kMostTries = 10;

Result<ShardedIndex> ReadIndex(const ByteSource& source,
                               const OpenOptions& options) {
  if (source.size() > options.limits.max_header_bytes) {
    return Status(Code::kLimit,
                  fmt::format("index of {} bytes passes max_header_bytes {}",
                              source.size(), options.limits.max_header_bytes));
  }
  HAULWAY_ASSIGN(const Buffer json, AllocateBuffer(source.size()));
  if (source.size() > 0) {
    HAULWAY_TRY(source.ReadAt(0, json.mutable_bytes()));
  }
  return ParseShardedIndex(json.bytes(), options.strictness, options.limits);
}

Result<SourcePtr> OpenFile(const ByteSource& index, const std::string& name) {
  auto file = index.OpenNeighbour(name);
  if (file.ok()) return file;
  return std::move(file).status().In(fmt::format("shard {}", Quote(name)));
}

// A MapCheck compares the tensors of the shards with the weight_map.
class MapCheck {
 public:
  MapCheck(const ShardedIndex& index, bool strict)
      : map_(*index.weight_map),
        files_(index.files),
        strict_(strict),
        seen_(map_.size()) {
    names_.Reserve(map_.size());
    for (uint32_t i = 0; i < map_.size(); ++i) {
      names_.Add(map_[i].name, i, NameOf());
    }
  }

  // Implements JoinedReader::Chooser.
  Result<bool> Take(uint32_t shard, std::string_view name, const TensorInfo&) {
    const uint32_t found = names_.Find(name, NameOf());
    const bool mapped = found != NameIndex::kNone && map_[found].file == shard;
    if (!mapped && strict_) return Contradiction(name, found);
    if (!mapped) return false;
    seen_[found] = true;
    return true;
  }

  // Checks that no tensor is missing. Requires: all shards were taken.
  Status CheckWhole() const {
    const auto missing = std::ranges::find(seen_, false);
    if (missing != seen_.end()) {
      const MappedTensor& tensor = map_[missing - seen_.begin()];
      return Status(
          Code::kMismatch,
          fmt::format(
              "tensor {} is not in shard {}, although the index says so",
              Quote(tensor.name), Quote(files_[tensor.file])));
    }
    return Status();
  }

 private:
  struct NameOfRow {
    const std::vector<MappedTensor>& map;
    std::string_view operator()(uint32_t i) const { return map[i].name; }
  };
  NameOfRow NameOf() const { return {map_}; }

  Status Contradiction(std::string_view name, uint32_t found) const {
    std::string what =
        found == NameIndex::kNone
            ? fmt::format("tensor {} is not in the index", Quote(name))
            : fmt::format(
                  "tensor {} is in another shard than the index says: "
                  "expected {}",
                  Quote(name), Quote(files_[map_[found].file]));
    what +=
        "; the option lenient, which load and convert have, reads what the "
        "index says";
    return Status(Code::kMismatch, what);
  }

  const std::vector<MappedTensor>& map_;
  const std::vector<std::string>& files_;
  const bool strict_;
  NameIndex names_;
  std::vector<bool> seen_;  // Parallel to the map.
};

// A NameCheck refuses names that occur in two shards of a list.
class NameCheck {
 public:
  explicit NameCheck(const std::vector<std::string>& files) : files_(files) {}

  // Implements JoinedReader::Chooser.
  Result<bool> Take(uint32_t shard, std::string_view name, const TensorInfo&) {
    const auto row = static_cast<uint32_t>(taken_.size());
    taken_.push_back({name, shard});
    const uint32_t same =
        names_.Add(name, row, [&](uint32_t i) { return taken_[i].name; });
    if (same == NameIndex::kNone) return true;
    return Status(Code::kMismatch,
                  fmt::format("tensor {} is in two shards: in {} too",
                              Quote(name), Quote(files_[taken_[same].shard])));
  }

 private:
  struct Taken {
    std::string_view name;
    uint32_t shard;
  };

  const std::vector<std::string>& files_;
  std::vector<Taken> taken_;
  NameIndex names_;
};

// Fails unless files that state their places in a checkpoint are all its files,
// each once.
Status CheckPlaces(std::span<const Shard> shards) {
  std::optional<FilePlace> first;
  std::set<uint64_t> seen;
  uint64_t tensors = 0;
  for (const Shard& shard : shards) {
    const CheckpointIndex& index = shard.reader->index();
    const PlaceFunctions* functions = EntryOf(index.format).place;
    if (functions == nullptr || !index.metadata.has_value()) continue;
    const std::optional<FilePlace> place = functions->get(*index.metadata);
    if (!place.has_value()) continue;
    if (!first.has_value()) first = place;
    const std::string part =
        fmt::format("part {} of {}", place->number + 1, place->count);
    if (place->count != first->count || place->tensors != first->tensors) {
      return Status(Code::kMismatch,
                    fmt::format("{} is of another model: expected one of {} "
                                "parts with {} tensors",
                                part, first->count, first->tensors.value_or(0)))
          .Of(shard.name);
    }
    if (!seen.insert(place->number).second) {
      return Status(Code::kMismatch,
                    fmt::format("{} of the model is there twice", part))
          .Of(shard.name);
    }
    tensors += index.tensors.size();
  }
  if (!first.has_value()) return Status();
  for (uint64_t number = 0; number < first->count; ++number) {
    if (seen.contains(number)) continue;
    return Status(
        Code::kMismatch,
        fmt::format(
            "part {} of {} of the model is missing; the option "
            "lenient, which load and convert have, reads the parts that are "
            "there",
            number + 1, first->count));
  }
  if (first->tensors.value_or(tensors) != tensors) {
    return Status(Code::kMismatch,
                  fmt::format("the parts have {} tensors: expected {}, as "
                              "their metadata says",
                              tensors, *first->tensors));
  }
  return Status();
}

// Returns the index if the shard is an index instead of a checkpoint. Only a
// list may contain an index, and that index only checkpoints.
Result<std::optional<ShardedIndex>> IndexOfShard(const ByteSource& shard,
                                                 const FormatEntry& format,
                                                 bool is_listed,
                                                 const OpenOptions& options) {
  if (!IsOfShards(format)) return std::optional<ShardedIndex>();
  HAULWAY_ASSIGN(ShardedIndex index, ReadIndex(shard, options));
  if (!is_listed || !index.weight_map.has_value()) {
    return Status(Code::kCorrupt, "an index names another index");
  }
  return std::optional(std::move(index));
}

Result<std::unique_ptr<const FormatReader>> OpenFiles(
    const ByteSource& source, const ShardedIndex& index,
    const OpenOptions& options);

Result<std::unique_ptr<const FormatReader>> OpenShard(
    const SourcePtr& file, bool is_listed, const OpenOptions& options) {
  HAULWAY_ASSIGN(const FormatEntry* format,
                 DetectFormat(*file, options.strictness));
  HAULWAY_ASSIGN(const auto index,
                 IndexOfShard(*file, *format, is_listed, options));
  if (index.has_value()) return OpenFiles(*file, *index, options);
  HAULWAY_ASSIGN(auto reader, format->open(file, options));
  if (!options.alone) HAULWAY_TRY(RefuseDeltaShard(*reader));
  return reader;
}

// Opens the checkpoint of a parsed index. Its files are neighbours of `source`.
Result<std::unique_ptr<const FormatReader>> OpenFiles(
    const ByteSource& source, const ShardedIndex& index,
    const OpenOptions& options) {
  const bool is_list = !index.weight_map.has_value();
  std::vector<Shard> shards(index.files.size());
  const auto open = [&](uint64_t i) -> Status {
    const std::string& name = index.files[i];
    HAULWAY_ASSIGN(const SourcePtr file, OpenFile(source, name));
    auto reader = OpenShard(file, is_list, options);
    if (!reader.ok()) return std::move(reader).status().Of(name);
    shards[i] = {name, *std::move(reader)};
    return Status();
  };
  HAULWAY_TRY(
      ParallelFor(shards.size(), std::max(source.Look({}).parallel, 1), open));
  if (options.strictness == Strictness::kStrict && !options.alone) {
    HAULWAY_TRY(CheckPlaces(shards));
  }
  bool encrypts = false;
  for (const Shard& shard : shards) {
    encrypts = encrypts || EntryOf(shard.reader->index().format).can.encrypt;
  }
  if (!options.key.empty() && !encrypts) {
    return Status(Code::kAuth,
                  "a key was given, but no shard can be encrypted");
  }
  const std::string name(source.name());
  if (is_list && AreDcpShards(shards)) {
    return OpenDcpShards(std::move(shards), options);
  }
  if (is_list) {
    NameCheck names(index.files);
    return JoinedReader::Join(
        std::move(shards), name, index.metadata, options.limits,
        [&](uint32_t shard, std::string_view tensor, const TensorInfo& info) {
          return names.Take(shard, tensor, info);
        });
  }
  MapCheck map(index, options.strictness == Strictness::kStrict);
  HAULWAY_ASSIGN(
      auto joined,
      JoinedReader::Join(
          std::move(shards), name, index.metadata, options.limits,
          [&](uint32_t shard, std::string_view tensor, const TensorInfo& info) {
            return map.Take(shard, tensor, info);
          }));
  HAULWAY_TRY(map.CheckWhole());
  return joined;
}

// Leaves out the files without a wanted name, unless none has one. Requires:
// the index has a weight_map.
void KeepFilesWith(const std::function<bool(std::string_view)>& wanted,
                   ShardedIndex* index) {
  constexpr uint32_t kLeftOut = UINT32_MAX;
  std::vector<uint32_t> numbers(index->files.size(), kLeftOut);
  for (const MappedTensor& tensor : *index->weight_map) {
    if (wanted(tensor.name)) numbers[tensor.file] = 0;
  }
  std::vector<std::string> files;
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] == kLeftOut) continue;
    numbers[i] = static_cast<uint32_t>(files.size());
    files.push_back(index->files[i]);
  }
  if (files.empty()) return;
  std::erase_if(*index->weight_map, [&](const MappedTensor& tensor) {
    return numbers[tensor.file] == kLeftOut;
  });
  for (MappedTensor& tensor : *index->weight_map) {
    tensor.file = numbers[tensor.file];
  }
  index->files = std::move(files);
}

// Adds the report of a shard to the combined report.
void Merge(const std::string& name, VerifyReport one, VerifyReport* all) {
  const std::string place = fmt::format("; of {}", Escape(name));
  all->ok = all->ok && one.ok;
  all->checked_bytes += one.checked_bytes;
  all->file_bytes += one.file_bytes;
  // The combined result is the weakest of the shards' results.
  if (all->authentication.empty() || one.authentication == "not checked" ||
      (one.authentication == "none" && all->authentication == "checked")) {
    all->authentication = std::move(one.authentication);
  }
  for (Unchecked& range : one.unchecked) {
    range.what += place;
    all->unchecked.push_back(std::move(range));
  }
  for (Finding& finding : one.findings) {
    finding.message += place;
    all->findings.push_back(std::move(finding));
  }
  for (std::string& note : one.notes) all->notes.push_back(note + place);
}

// Adds a note if the index's total size differs from the tensors' size. Skips
// formats whose tensors share storages, because writers count these in
// different ways.
void NoteTotalSize(const ShardedIndex& index, const CheckpointIndex& found,
                   VerifyReport* report) {
  if (!index.total_size.has_value() || EntryOf(found.format).can.views) return;
  uint64_t total = 0;
  for (const TensorInfo& tensor : found.tensors) total += tensor.nbytes;
  if (*index.total_size == total) return;
  report->notes.push_back(
      fmt::format("total_size of the index is wrong: expected {}, found {}",
                  total, *index.total_size));
}

// Adds a note if a missing last shard would not be detected.
void NoteUnseen(const CheckpointIndex& found, VerifyReport* report) {
  const auto fact =
      std::ranges::find(found.facts, dcp::kShapesStatedFact, &Fact::name);
  if (fact == found.facts.end() || fact->value == FactValue(true)) return;
  report->notes.emplace_back(
      "the files do not state the shapes of whole tensors, so that a missing "
      "last shard would not be detected");
}

VerifyReport ReportOf(const ByteSource& index_file) {
  VerifyReport report;
  report.file = index_file.name();
  report.format = Format::kSafetensors;
  report.file_bytes = index_file.size();
  return report;
}

// Reports a fault of a file. Fails if its source failed.
Status Note(Status status, VerifyReport* report) {
  if (IsOfSource(status)) return status;
  report->ok = false;
  report->findings.push_back(
      {status.code(), std::string(status.message()), status.byte()});
  return Status();
}

Result<VerifyReport> VerifyFiles(const ByteSource& source,
                                 const ShardedIndex& index,
                                 const VerifyOptions& options);

Result<VerifyReport> VerifyShard(const SourcePtr& file, bool is_listed,
                                 const VerifyOptions& options) {
  HAULWAY_ASSIGN(const FormatEntry* format,
                 DetectFormat(*file, options.open.strictness));
  HAULWAY_ASSIGN(const auto index,
                 IndexOfShard(*file, *format, is_listed, options.open));
  if (index.has_value()) return VerifyFiles(*file, *index, options);
  return format->verify(file, options);
}

Result<VerifyReport> VerifyFiles(const ByteSource& source,
                                 const ShardedIndex& index,
                                 const VerifyOptions& options) {
  VerifyReport report = ReportOf(source);
  std::vector<SourcePtr> files;
  uint64_t total = 0;
  for (const std::string& name : index.files) {
    auto file = OpenFile(source, name);
    if (!file.ok()) {
      HAULWAY_TRY(Note(std::move(file).status(), &report));
      return report;
    }
    total += (*file)->size();
    files.push_back(*std::move(file));
  }
  uint64_t before = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    VerifyOptions one = options;
    if (options.progress) {
      one.progress = [&](uint64_t done, uint64_t) {
        options.progress(std::min(before + done, total), total);
      };
    }
    auto verified = VerifyShard(files[i], !index.weight_map.has_value(), one);
    before += files[i]->size();
    if (!verified.ok()) {
      HAULWAY_TRY(
          Note(std::move(verified).status().Of(index.files[i]), &report));
      continue;
    }
    if (i == 0) report.format = verified->format;
    Merge(index.files[i], *std::move(verified), &report);
  }
  // If a file is faulty, joining them would fail anyway.
  if (report.ok) {
    const auto opened = OpenFiles(source, index, options.open);
    if (opened.ok()) {
      report.format = (*opened)->index().format;
      NoteTotalSize(index, (*opened)->index(), &report);
      NoteUnseen((*opened)->index(), &report);
      HAULWAY_ASSIGN(const CheckedTensors checked,
                     CheckFull(**opened, options.threads, options.cancel));
      report.checked_bytes += checked.bytes;
      for (const WrongTensor& one : checked.wrong) {
        HAULWAY_TRY(Note(one.status, &report));
      }
    } else {
      HAULWAY_TRY(Note(opened.status(), &report));
    }
  }
  return report;
}

}  // namespace

Result<ShardedIndex> ReadShardedIndex(const ByteSource& source,
                                      const OpenOptions& options) {
  return ReadIndex(source, options);
}

Result<std::unique_ptr<const FormatReader>> OpenFilesOf(
    const ByteSource& source, const ShardedIndex& index,
    const OpenOptions& options) {
  return OpenFiles(source, index, options);
}

Result<std::unique_ptr<const FormatReader>> OpenSharded(
    SourcePtr source, const OpenOptions& options) {
  const auto open = [&]() -> Result<std::unique_ptr<const FormatReader>> {
    HAULWAY_ASSIGN(const ShardedIndex index, ReadIndex(*source, options));
    if (delta::IsDelta(index.metadata)) {
      return OpenVersion(*source, index, options);
    }
    return OpenFiles(*source, index, options);
  };
  for (int tries = 1;; ++tries) {
    const NameWatch watch(*source);
    auto opened = open();
    if (watch.IsSame()) return opened;
    // The shards may be of two saves.
    const std::string path(source->name());
    auto again = source->OpenNeighbour(path.substr(path.rfind('/') + 1));
    if (!again.ok()) return std::move(again).status();
    if (tries == kMostTries) {
      return Status(Code::kUnavailable,
                    "saves replaced the shards while they were opened")
          .Of(path);
    }
    source = *std::move(again);
  }
}

Result<std::unique_ptr<const FormatReader>> OpenShardsWith(
    SourcePtr source, const OpenOptions& options,
    const std::function<bool(std::string_view)>& wanted) {
  HAULWAY_ASSIGN(ShardedIndex index, ReadIndex(*source, options));
  if (delta::IsDelta(index.metadata)) {
    return OpenVersion(*source, index, options);
  }
  if (index.weight_map.has_value()) KeepFilesWith(wanted, &index);
  return OpenFiles(*source, index, options);
}

Result<VerifyReport> VerifySharded(SourcePtr source,
                                   const VerifyOptions& options) {
  const auto index = ReadIndex(*source, options.open);
  if (index.ok() && delta::IsDelta(index->metadata)) {
    return VerifyVersion(*source, *index, options);
  }
  if (index.ok()) return VerifyFiles(*source, *index, options);
  if (index.status().code() == Code::kUnsupported) return index.status();
  VerifyReport report = ReportOf(*source);
  HAULWAY_TRY(Note(index.status(), &report));
  return report;
}

Result<std::optional<VerifyReport>> VerifyIndexAlone(
    const ByteSource& source, bool is_named_so, const VerifyOptions& options) {
  const auto index = ReadIndex(source, options.open);
  if (!index.ok() && !is_named_so) return std::optional<VerifyReport>();
  if (index.ok() && !index->weight_map.has_value()) {
    HAULWAY_ASSIGN(VerifyReport whole, VerifyFiles(source, *index, options));
    return std::optional(std::move(whole));
  }
  // The shards of a delta cannot be verified one by one.
  if (index.ok() && delta::IsDelta(index->metadata)) {
    HAULWAY_ASSIGN(VerifyReport whole, VerifyVersion(source, *index, options));
    return std::optional(std::move(whole));
  }
  VerifyReport report = ReportOf(source);
  Status status = index.status();
  if (status.ok()) {
    const auto opened = OpenFiles(source, *index, options.open);
    if (opened.ok()) {
      report.format = (*opened)->index().format;
      NoteTotalSize(*index, (*opened)->index(), &report);
    }
    status = opened.status();
  }
  if (!status.ok()) HAULWAY_TRY(Note(std::move(status), &report));
  return std::optional(std::move(report));
}

}  // namespace haulway
