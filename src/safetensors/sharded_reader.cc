#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/name_index.h"
#include "base/text.h"
#include "safetensors/header_reader.h"
#include "safetensors/sharded_index.h"

namespace haulway::safetensors {

namespace {

// A ShardJoiner makes one index of the headers of all files.
class ShardJoiner {
 public:
  ShardJoiner(const ShardedIndex& map, const OpenOptions& options)
      : map_(map), options_(options), seen_(map.weight_map.size()) {
    names_.Reserve(map.weight_map.size());
    for (uint32_t i = 0; i < map.weight_map.size(); ++i) {
      names_.Add(map.weight_map[i].name, i, NameOf());
    }
  }

  Result<std::unique_ptr<const FormatReader>> Join(
      const ByteSource& index_file) {
    std::vector<std::shared_ptr<const ByteSource>> files;
    for (const std::string& name : map_.files) {
      auto file = index_file.OpenNeighbour(name);
      if (!file.ok()) {
        return std::move(file).status().In(
            fmt::format("shard {}", Quote(name)));
      }
      files.push_back(*std::move(file));
    }
    HAULWAY_ASSIGN(const Concatenation joined,
                   ConcatenateSources(files, std::string(index_file.name())));
    auto reader = std::make_unique<HeaderReader>(joined.source);
    CheckpointIndex& index = reader->mutable_index();
    reader->Reserve(map_.weight_map.size());
    index.metadata = map_.metadata;
    for (uint32_t i = 0; i < files.size(); ++i) {
      index.parts.push_back({reader->arena().Copy(map_.files[i]),
                             joined.starts[i], files[i]->size()});
      Status status = Add(i, *files[i], joined.starts[i], reader.get());
      if (!status.ok()) return std::move(status).Of(map_.files[i]);
    }
    HAULWAY_TRY(CheckWhole());
    index.facts = {{"shards", uint64_t{files.size()}}};
    return std::unique_ptr<const FormatReader>(std::move(reader));
  }

 private:
  struct NameOfRow {
    const std::vector<MappedTensor>& map;
    std::string_view operator()(uint32_t i) const { return map[i].name; }
  };
  NameOfRow NameOf() const { return {map_.weight_map}; }
  bool strict() const { return options_.strictness == Strictness::kStrict; }

  Status Add(uint32_t row, const ByteSource& file, uint64_t start,
             HeaderReader* reader) {
    HAULWAY_ASSIGN(const OpenedHeader opened,
                   reader->ReadHeader(file, options_));
    for (const HeaderTensor& tensor : opened.header.tensors) {
      const uint32_t found = names_.Find(tensor.name, NameOf());
      const bool mapped =
          found != NameIndex::kNone && map_.weight_map[found].file == row;
      if (!mapped && strict()) return Contradiction(tensor.name, found);
      if (!mapped) continue;
      seen_[found] = true;
      total_bytes_ += tensor.end - tensor.begin;
      HAULWAY_TRY(reader->Append(tensor, start + opened.data_offset));
    }
    if (opened.header.metadata.has_value()) {
      AddMetadata(*opened.header.metadata, &*reader->mutable_index().metadata);
    }
    return Status();
  }

  Status Contradiction(std::string_view name, uint32_t found) const {
    return Status(
        Code::kMismatch,
        found == NameIndex::kNone
            ? fmt::format("tensor {} is not in the index", Quote(name))
            : fmt::format("tensor {} is in another shard by the index: "
                          "expected {}",
                          Quote(name),
                          Quote(map_.files[map_.weight_map[found].file])));
  }

  // What the shards note too, where the index does not.
  static void AddMetadata(
      std::span<const std::pair<std::string_view, std::string_view>> noted,
      std::vector<Fact>* metadata) {
    for (const auto& [key, value] : noted) {
      if (std::ranges::find(*metadata, key, &Fact::name) == metadata->end()) {
        metadata->push_back({std::string(key), std::string(value)});
      }
    }
  }

  Status CheckWhole() const {
    const auto missing = std::ranges::find(seen_, false);
    if (missing != seen_.end()) {
      const MappedTensor& tensor = map_.weight_map[missing - seen_.begin()];
      return Status(
          Code::kMismatch,
          fmt::format("tensor {} is not in shard {}, where the "
                      "index has it",
                      Quote(tensor.name), Quote(map_.files[tensor.file])));
    }
    if (strict() && map_.total_size.value_or(total_bytes_) != total_bytes_) {
      return Status(Code::kMismatch,
                    fmt::format("total_size of the index is wrong: expected "
                                "{}, found {}",
                                total_bytes_, *map_.total_size));
    }
    return Status();
  }

  const ShardedIndex& map_;
  const OpenOptions& options_;
  NameIndex names_;
  std::vector<bool> seen_;  // Parallel to the map.
  uint64_t total_bytes_ = 0;
};

}  // namespace

bool IsShardedIndex(std::span<const std::byte> head) {
  char last = 0;
  for (const std::byte byte : head) {
    const auto c = static_cast<char>(byte);
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
    if (last == '{') return c == '"';
    if (c != '{') return false;
    last = c;
  }
  return false;
}

Result<std::unique_ptr<const FormatReader>> OpenSharded(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  if (source->size() > options.limits.max_header_bytes) {
    return Status(Code::kLimit,
                  fmt::format("index of {} bytes passes max_header_bytes {}",
                              source->size(), options.limits.max_header_bytes));
  }
  HAULWAY_ASSIGN(const Buffer json, AllocateBuffer(source->size()));
  HAULWAY_TRY(source->ReadAt(0, json.mutable_bytes()));
  HAULWAY_ASSIGN(
      const ShardedIndex map,
      ParseShardedIndex(json.bytes(), options.strictness, options.limits));
  return ShardJoiner(map, options).Join(*source);
}

Result<VerifyReport> VerifySharded(std::shared_ptr<const ByteSource> source,
                                   const VerifyOptions& options) {
  const auto opened = OpenSharded(source, options.open);
  return ReportOpening(Format::kSafetensors,
                       opened.ok() ? *(*opened)->source() : *source, options,
                       opened);
}

}  // namespace haulway::safetensors
