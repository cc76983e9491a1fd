#include "versions/version_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
#include <utility>

#include "base/json_text.h"
#include "base/text.h"
#include "checkpoint/version_source.h"
#include "haulway/index.h"
#include "haulway/source.h"
#include "versions/version_names.h"

namespace haulway {

namespace {

std::string IndexWith(std::string_view metadata, const WeightMap& weight_map) {
  std::string json =
      fmt::format("{{\"metadata\": {{{}}}, \"weight_map\": {{", metadata);
  for (size_t i = 0; i < weight_map.size(); ++i) {
    json += fmt::format("{}{}: {}", i == 0 ? "" : ", ",
                        JsonText(weight_map[i].first),
                        JsonText(weight_map[i].second));
  }
  return json + "}}";
}

Status WrongOption(std::string_view option, std::string_view value,
                   std::string_view expected) {
  return Status(
      Code::kInvalidArgument,
      fmt::format("{} {}: expected {}", option, Quote(value), expected));
}

}  // namespace

std::vector<ShardRows> SplitIntoShards(const std::vector<size_t>& rows,
                                       const std::vector<uint64_t>& sizes,
                                       uint64_t shard_bytes) {
  std::vector<ShardRows> shards;
  uint64_t bytes = 0;
  for (const size_t row : rows) {
    bytes += sizes[row];
    if (shards.empty() || (shard_bytes != 0 && bytes > shard_bytes)) {
      shards.emplace_back();
      bytes = sizes[row];
    }
    shards.back().push_back(row);
  }
  return shards;
}

Status ShardWriter::Write(TensorsToWrite tensors, uint64_t number) {
  const std::string file =
      fmt::format("model-{:05}-of-{:05}.safetensors", number, count_);
  for (const TensorToWrite& tensor : tensors.tensors) {
    weight_map_.emplace_back(tensor.name, file);
  }
  HAULWAY_ASSIGN(const auto sink, folder_->OpenFile(file));
  HAULWAY_ASSIGN(const WriteStats stats,
                 Save(std::move(tensors), Format::kSafetensors, *sink));
  bytes_ += stats.bytes;
  return Status();
}

Status ShardWriter::WriteDelta(const std::vector<const SpooledChange*>& tensors,
                               const FrameSpool& spool) {
  TensorsToWrite shard;
  shard.in_order = true;
  shard.metadata.emplace();
  for (const SpooledChange* const one : tensors) {
    const uint64_t size = one->frame.size();
    shard.tensors.push_back(
        {.name = one->name,
         .dtype = DType::kU8,
         .shape = {static_cast<int64_t>(size)},
         .bytes = {
             .length = size,
             .source = MakeFunctionSource(
                 size,
                 [one, &spool](uint64_t offset, std::span<std::byte> out) {
                   return spool.Read(one->frame, offset, out);
                 },
                 one->name)}});
    shard.metadata->emplace_back(one->name, one->checksum);
  }
  return Write(std::move(shard), next_++);
}

Status ShardWriter::WriteFull(std::vector<TensorToWrite> tensors) {
  TensorsToWrite shard;
  shard.tensors = std::move(tensors);
  shard.metadata.emplace();
  shard.metadata->emplace_back("format", "pt");
  return Write(std::move(shard), 1 + next_++);
}

std::string DeltaIndex(const delta::VersionFacts& facts,
                       const WeightMap& weight_map) {
  return IndexWith(
      fmt::format("\"version\": {}, \"base_version\": {}, "
                  "\"delta_encoding\": \"{}\", \"compression_format\": "
                  "\"zstd\", \"checksum_format\": \"{}\"",
                  JsonText(facts.version), JsonText(facts.base),
                  Name(facts.change), Name(facts.checksum)),
      weight_map);
}

std::string FullIndex(std::string_view version, uint64_t total_bytes,
                      const WeightMap& weight_map) {
  return IndexWith(fmt::format("\"version\": {}, \"total_size\": {}",
                               JsonText(version), total_bytes),
                   weight_map);
}

Status WriteIndex(std::string_view json, NewFolder* folder) {
  HAULWAY_ASSIGN(const auto sink,
                 folder->OpenFile(std::string(kVersionIndexName)));
  HAULWAY_TRY(sink->Begin(json.size()).status());
  HAULWAY_TRY(sink->WriteAt(0, std::as_bytes(std::span(json))));
  return sink->Commit(json.size());
}

namespace {

// Fails unless receivers can tell a new version by this number or name.
Status CheckVersionText(std::string_view option, std::string_view text) {
  const bool is_line = std::ranges::none_of(
      text, [](unsigned char c) { return c < 0x20 || c == 0x7F || c == '/'; });
  const bool is_negative =
      text.starts_with('-') && !delta::NumberOf(text.substr(1)).empty();
  const std::string_view number = delta::NumberOf(text);
  if (is_line && !is_negative && NumberFromDigits(number) != UINT64_MAX) {
    return Status();
  }
  return Status(Code::kInvalidArgument,
                fmt::format("{} is {}: expected a number from 0 to 2^64 - 2, "
                            "or a name without a slash and control characters",
                            option, Quote(text)));
}

}  // namespace

Result<delta::VersionFacts> NewVersionFacts(std::string version,
                                            std::string base,
                                            std::string_view encoding,
                                            std::string_view checksum,
                                            std::string_view folder) {
  HAULWAY_TRY(CheckVersionText("version", version));
  HAULWAY_TRY(CheckVersionText("base_version", base));
  const bool has_order =
      !delta::NumberOf(version).empty() && !delta::NumberOf(base).empty();
  if (has_order && !delta::IsOlderVersion(base, version)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("base_version is {}: expected an older version "
                              "than {}",
                              Quote(base), Quote(version)));
  }
  delta::VersionFacts facts;
  facts.version = std::move(version);
  facts.base = std::move(base);
  const auto change = delta::ChangeFromName(encoding);
  if (!change.has_value()) {
    return WrongOption("encoding", encoding, "xor or overwrite");
  }
  facts.change = *change;
  const auto kind = delta::ChecksumKindFromName(checksum);
  if (!kind.has_value()) {
    return WrongOption("checksum", checksum, "xxh3-128, blake3 or adler32");
  }
  facts.checksum = *kind;
  const std::vector<Fact> metadata = {
      {"version", facts.version},
      {"base_version", facts.base},
      {"delta_encoding", std::string(Name(facts.change))},
      {"compression_format", std::string("zstd")},
      {"checksum_format", std::string(Name(facts.checksum))}};
  const auto read = delta::ReadVersionFacts(metadata, folder);
  if (read.ok()) return facts;
  return Status(Code::kInvalidArgument, read.status().message());
}

}  // namespace haulway
