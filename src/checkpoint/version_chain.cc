// Design: a version's index names its base, which the index's source opens
// (ByteSource::OpenBase), because only that knows where other versions lie. The
// chain is followed to a full checkpoint of any format; then one reader
// (delta/version_reader.h) presents the newest version.
//
// Alternative not taken: a reader on top of the reader of the base. A chain of
// a hundred versions would need as many indexes in memory, and a read would
// pass through all of them.

#include "checkpoint/version_chain.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/is_of_source.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/format_registry.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_source.h"
#include "checkpoint/whole_model.h"
#include "decode/stored_tensor.h"
#include "delta/checksum.h"
#include "delta/version_facts.h"
#include "format/flat_reader.h"
#include "haulway/machine.h"
#include "io/model_names.h"
#include "safetensors/safetensors_reader.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;
using ReaderPtr = std::unique_ptr<const FormatReader>;

// Returns the name of the folder in which a file lies.
std::string FolderOf(std::string_view path) {
  path = path.substr(0, path.find_first_of("?#"));
  const size_t slash = path.rfind('/');
  if (slash == path.npos) return {};
  return std::string(LastPart(path.substr(0, slash)));
}

// Fails unless `file` is the name of a file in the index's own folder.
Status CheckFileName(std::string_view file) {
  if (file.find('/') == file.npos && file != "..") return Status();
  return Status(Code::kCorrupt,
                fmt::format("the index names a file outside its folder: {}",
                            Quote(file)));
}

Result<ReaderPtr> OpenShardOfDelta(const ByteSource& source,
                                   const std::string& name,
                                   const OpenOptions& options) {
  HAULWAY_TRY(CheckFileName(name));
  auto file = source.OpenNeighbour(name);
  if (!file.ok()) {
    return std::move(file).status().In(fmt::format("shard {}", Quote(name)));
  }
  const std::string path((*file)->name());
  OpenOptions strict = options;
  strict.strictness = Strictness::kStrict;
  auto reader = safetensors::OpenSafetensors(*std::move(file), strict);
  if (!reader.ok()) return std::move(reader).status().Of(path);
  return reader;
}

// The deltas of a chain, the newest first, and the checkpoint before them.
struct Chain {
  std::vector<delta::OpenedDelta> deltas;
  SourcePtr base;
  std::string base_path;
};

// Follows a chain to its full checkpoint.
class ChainOpener {
 public:
  explicit ChainOpener(const OpenOptions& options) : options_(options) {}

  // Returns whether Run() failed because a base was not found: nothing is wrong
  // with the version then.
  bool lacks_base() const { return lacks_base_; }

  Result<Chain> Run(const ByteSource& source, const ShardedIndex& index) {
    HAULWAY_TRY(Add(source, index));
    const ByteSource* newest = &source;
    while (true) {
      const delta::VersionFacts& facts = chain_.deltas.back().facts;
      auto found = newest->OpenBase(facts.version, facts.base);
      if (!found.ok()) {
        lacks_base_ = found.status().code() == Code::kNotFound;
        return std::move(found).status().Of(newest->name());
      }
      HAULWAY_ASSIGN(const std::optional<ShardedIndex> of_delta,
                     DeltaIndexOf(**found));
      if (!of_delta.has_value()) {
        chain_.base_path = (*found)->name();
        chain_.base = *std::move(found);
        return std::move(chain_);
      }
      HAULWAY_TRY(Add(**found, *of_delta));
      kept_ = *std::move(found);
      newest = kept_.get();
    }
  }

 private:
  Status Add(const ByteSource& source, const ShardedIndex& index) {
    if (!seen_.insert(std::string(source.name())).second) {
      return Status(Code::kCorrupt,
                    fmt::format("the versions build on one another in a "
                                "circle: version {} comes twice",
                                Quote(chain_.deltas.back().facts.base)))
          .Of(source.name());
    }
    HAULWAY_ASSIGN(delta::OpenedDelta opened,
                   OpenDelta(source, index, options_));
    chain_.deltas.push_back(std::move(opened));
    return Status();
  }

  // Returns the index if the source is that of a delta.
  Result<std::optional<ShardedIndex>> DeltaIndexOf(const ByteSource& source) {
    const auto read = [&]() -> Result<std::optional<ShardedIndex>> {
      HAULWAY_ASSIGN(const FormatEntry* format,
                     DetectFormat(source, options_.strictness));
      if (!IsOfShards(*format)) return std::optional<ShardedIndex>();
      HAULWAY_ASSIGN(ShardedIndex index, ReadShardedIndex(source, options_));
      if (!delta::IsDelta(index.metadata)) {
        return std::optional<ShardedIndex>();
      }
      return std::optional(std::move(index));
    };
    auto index = read();
    if (!index.ok()) return std::move(index).status().Of(source.name());
    return index;
  }

  const OpenOptions& options_;
  Chain chain_;
  bool lacks_base_ = false;
  SourcePtr kept_;
  std::set<std::string> seen_;
};

Result<std::unique_ptr<const delta::VersionReader>> OpenChain(
    Chain chain, std::string name, const OpenOptions& options) {
  const auto open = [&]() -> Result<ReaderPtr> {
    HAULWAY_ASSIGN(Detected found, DetectWhole(chain.base, options));
    if (found.reader == nullptr) {
      HAULWAY_ASSIGN(found.reader, found.format->open(found.source, options));
    }
    HAULWAY_TRY(RefuseDeltaShard(*found.reader));
    return std::move(found.reader);
  };
  auto base = open();
  if (!base.ok()) return std::move(base).status().Of(chain.base_path);
  std::ranges::reverse(chain.deltas);
  return delta::VersionReader::Make(*std::move(base), chain.base_path,
                                    std::move(chain.deltas), std::move(name),
                                    options.limits);
}

Finding FindingOf(const Status& status) {
  return {status.code(), std::string(status.message()), status.byte()};
}

// Decodes a changed tensor, and compares the checksums of all versions.
Status CheckOneChanged(const delta::VersionReader& reader, uint32_t row,
                       uint32_t* at) {
  const StorageInfo& storage = reader.index().storages[row];
  HAULWAY_ASSIGN(const Buffer memory,
                 AllocateBuffer(storage.frame_end - storage.frame_offset));
  HAULWAY_TRY(
      reader.source()->ReadAt(storage.frame_offset, memory.mutable_bytes()));
  const uint64_t before = storage.offset - storage.frame_offset;
  return reader.DecodeEach(row, memory.bytes().first(before),
                           memory.mutable_bytes().subspan(before), at);
}

// Calls check(i, &wrong) for each tensor, on several threads.
Result<CheckedTensors> CheckEach(
    size_t count, int threads, const std::atomic<bool>* cancel,
    const std::function<Status(size_t i, WrongTensor* one)>& check) {
  std::vector<WrongTensor> found(count);
  HAULWAY_TRY(ParallelFor(
      count, threads > 0 ? threads : UsableCpus(), [&](uint64_t i) -> Status {
        if (cancel != nullptr && cancel->load()) {
          return Status(Code::kCancelled, "verifying was cancelled");
        }
        WrongTensor& one = found[i];
        one.status = OrNoMemory([&] { return check(i, &one); });
        return IsOfSource(one.status) ? one.status : Status();
      }));
  std::erase_if(found, [](const WrongTensor& one) { return one.status.ok(); });
  return CheckedTensors{std::move(found), 0};
}

// Returns the adler32 that a full version's metadata have for a tensor; empty
// if there is none.
std::string SumOfFull(const std::map<std::string_view, const Fact*>& metadata,
                      std::string_view tensor) {
  const auto text_at = [&](std::string_view key) -> std::string {
    const auto found = metadata.find(key);
    if (found == metadata.end()) return {};
    const auto* text = std::get_if<std::string>(&found->second->value);
    return text == nullptr ? std::string() : *text;
  };
  std::string sum = text_at(fmt::format("mx.adler32:{}", tensor));
  if (sum.empty() && text_at("checksum_format") == "adler32") {
    sum = text_at(tensor);
  }
  return sum;
}

Result<VerifyReport> VerifyBase(const SourcePtr& base,
                                const VerifyOptions& options) {
  HAULWAY_ASSIGN(const Detected found, DetectWhole(base, options.open));
  return found.format->verify(found.source, options);
}

// Adds a note if nothing shows that the base is the one on which the first
// delta was made.
Status NoteUnprovenBase(const Chain& chain, VerifyReport* report) {
  const delta::VersionFacts& first = chain.deltas.back().facts;
  HAULWAY_ASSIGN(const auto states, StatedVersion(*chain.base));
  if (states.has_value() && delta::IsSameVersion(*states, first.base)) {
    return Status();
  }
  report->notes.push_back(fmt::format(
      "version {} builds on version {}, and nothing but the checksums of the "
      "changed tensors shows that {} is that version: deltas hold no checksum "
      "of their base",
      Quote(first.version), Quote(first.base), Quote(chain.base_path)));
  return Status();
}

}  // namespace

Result<delta::OpenedDelta> OpenDelta(const ByteSource& source,
                                     const ShardedIndex& index,
                                     const OpenOptions& options) {
  const auto open = [&]() -> Result<delta::OpenedDelta> {
    delta::OpenedDelta opened;
    opened.path = source.name();
    HAULWAY_ASSIGN(opened.facts, delta::ReadVersionFacts(
                                     index.metadata, FolderOf(source.name())));
    if (!index.weight_map.has_value()) {
      return Status(Code::kCorrupt,
                    "the index of the version has no "
                    "weight_map");
    }
    std::vector<delta::ListedTensor> listed;
    listed.reserve(index.weight_map->size());
    for (const MappedTensor& tensor : *index.weight_map) {
      listed.push_back({tensor.name, tensor.file});
    }
    opened.shards.resize(index.files.size());
    HAULWAY_TRY(ParallelFor(
        opened.shards.size(), std::max(source.Look({}).parallel, 1),
        [&](uint64_t i) -> Status {
          opened.shards[i].name = index.files[i];
          HAULWAY_ASSIGN(opened.shards[i].reader,
                         OpenShardOfDelta(source, index.files[i], options));
          return Status();
        }));
    HAULWAY_TRY(delta::CheckDelta(listed, &opened));
    return opened;
  };
  auto opened = open();
  if (!opened.ok()) return std::move(opened).status().Of(source.name());
  return opened;
}

Result<ReaderPtr> OpenVersion(const ByteSource& source,
                              const ShardedIndex& index,
                              const OpenOptions& options) {
  HAULWAY_ASSIGN(auto reader, OpenVersionReader(source, index, options));
  return ReaderPtr(std::move(reader));
}

Result<std::unique_ptr<const delta::VersionReader>> OpenVersionReader(
    const ByteSource& source, const ShardedIndex& index,
    const OpenOptions& options) {
  HAULWAY_ASSIGN(Chain chain, ChainOpener(options).Run(source, index));
  return OpenChain(std::move(chain), std::string(source.name()), options);
}

Result<CheckedTensors> CheckChanged(const delta::VersionReader& reader,
                                    int threads,
                                    const std::atomic<bool>* cancel) {
  const auto& storages = reader.index().storages;
  std::vector<uint32_t> rows;
  uint64_t bytes = 0;
  for (uint32_t row = 0; row < storages.size(); ++row) {
    if (!reader.IsChanged(row)) continue;
    rows.push_back(row);
    bytes += storages[row].nbytes;
  }
  HAULWAY_ASSIGN(
      CheckedTensors checked,
      CheckEach(rows.size(), threads, cancel, [&](size_t i, WrongTensor* one) {
        one->tensor = storages[rows[i]].key;
        return CheckOneChanged(reader, rows[i], &one->delta);
      }));
  checked.bytes = bytes;
  return checked;
}

Result<CheckedTensors> CheckFull(const FormatReader& reader, int threads,
                                 const std::atomic<bool>* cancel) {
  const CheckpointIndex& index = reader.index();
  if (!index.metadata.has_value()) return CheckedTensors();
  std::map<std::string_view, const Fact*> metadata;
  for (const Fact& fact : *index.metadata) metadata[fact.name] = &fact;
  std::vector<std::pair<const Entry*, std::string>> sums;
  uint64_t bytes = 0;
  for (const Entry& entry : index.entries) {
    std::string sum = SumOfFull(metadata, entry.name);
    if (sum.empty()) continue;
    bytes += index.tensors[entry.tensor].nbytes;
    sums.emplace_back(&entry, std::move(sum));
  }
  HAULWAY_ASSIGN(
      CheckedTensors checked,
      CheckEach(
          sums.size(), threads, cancel,
          [&](size_t i, WrongTensor* one) -> Status {
            one->tensor = sums[i].first->name;
            const TensorInfo& tensor = index.tensors[sums[i].first->tensor];
            HAULWAY_ASSIGN(const Buffer memory, AllocateBuffer(tensor.nbytes));
            HAULWAY_TRY(ReadTensor(reader, tensor, memory.mutable_bytes()));
            delta::Checksum sum(delta::ChecksumKind::kAdler32);
            sum.Update(memory.bytes());
            Status status = delta::CompareChecksums(
                delta::ChecksumKind::kAdler32, sums[i].second, sum.Finish());
            if (status.ok()) return status;
            return std::move(status).In(Quote(sums[i].first->name));
          }));
  checked.bytes = bytes;
  return checked;
}

Result<VerifyReport> VerifyVersion(const ByteSource& source,
                                   const ShardedIndex& index,
                                   const VerifyOptions& options) {
  VerifyReport report;
  report.file = source.name();
  report.format = Format::kSafetensorsDelta;
  report.file_bytes = source.size();
  const auto note = [&](const Status& status) -> Status {
    if (IsOfSource(status) && status.code() != Code::kNotFound) return status;
    report.ok = false;
    report.findings.push_back(FindingOf(status));
    return Status();
  };
  ChainOpener opener(options.open);
  auto chain = opener.Run(source, index);
  if (opener.lacks_base()) return chain.status();
  if (!chain.ok()) {
    HAULWAY_TRY(note(chain.status()));
    return report;
  }
  auto base = VerifyBase(chain->base, options);
  if (!base.ok()) {
    HAULWAY_TRY(note(std::move(base).status().Of(chain->base_path)));
    return report;
  }
  report.ok = base->ok;
  report.checked_bytes = base->checked_bytes;
  report.file_bytes += base->file_bytes;
  report.findings = std::move(base->findings);
  report.notes = std::move(base->notes);
  HAULWAY_TRY(NoteUnprovenBase(*chain, &report));
  for (const auto& opened : chain->deltas) {
    for (const delta::DeltaShard& shard : opened.shards) {
      report.file_bytes += shard.reader->source()->size();
    }
  }
  if (!report.ok) return report;
  const auto reader =
      OpenChain(*std::move(chain), std::string(source.name()), options.open);
  if (!reader.ok()) {
    HAULWAY_TRY(note(reader.status()));
    return report;
  }
  HAULWAY_ASSIGN(const CheckedTensors checked,
                 CheckChanged(**reader, options.threads, options.cancel));
  for (const WrongTensor& one : checked.wrong) HAULWAY_TRY(note(one.status));
  report.checked_bytes += checked.bytes;
  if (options.progress) options.progress(report.file_bytes, report.file_bytes);
  return report;
}

Status RefuseDeltaShard(const FormatReader& reader) {
  if (reader.index().format != Format::kSafetensors) return Status();
  HAULWAY_ASSIGN(const bool is_delta, delta::IsDeltaShard(reader));
  if (!is_delta) return Status();
  return Status(
      Code::kUnsupported,
      "a shard of a delta of weights, not a checkpoint: open the "
      "model.safetensors.index.json of its version; the option alone, "
      "which load and convert have, opens it as it is");
}

Result<VerifyReport> VerifySafetensorsFile(SourcePtr source,
                                           const VerifyOptions& options) {
  const auto opened = safetensors::OpenSafetensors(source, options.open);
  HAULWAY_ASSIGN(VerifyReport report,
                 ReportOpening(Format::kSafetensors, *source, options, opened));
  if (!opened.ok() || options.open.alone) return report;
  const Status refused = RefuseDeltaShard(**opened);
  if (refused.ok()) return report;
  // With an index beside it, the version is verified there.
  if (source->OpenNeighbour(kVersionIndexName).ok()) return report;
  report.ok = false;
  report.findings.push_back(FindingOf(refused));
  return report;
}

}  // namespace haulway
