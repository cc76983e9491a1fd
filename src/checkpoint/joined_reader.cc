#include "checkpoint/joined_reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <utility>

#include "format/flat_reader.h"
#include "haulway/format.h"

namespace haulway {

namespace {

// Adds metadata of a shard whose keys other shards do not have, without the
// keys that say which of several files it is.
void AddMetadata(const CheckpointIndex& shard, std::vector<Fact>* metadata) {
  if (!shard.metadata.has_value()) return;
  const PlaceFunctions* place = EntryOf(shard.format).place;
  for (const Fact& fact : *shard.metadata) {
    if (place != nullptr && place->is_key(fact.name)) continue;
    if (std::ranges::find(*metadata, fact.name, &Fact::name) ==
        metadata->end()) {
      metadata->push_back(fact);
    }
  }
}

Status CheckCounts(const std::vector<Shard>& shards,
                   const ParseLimits& limits) {
  uint64_t tensors = 0;
  uint64_t storages = 0;
  for (const Shard& shard : shards) {
    tensors += shard.reader->index().tensors.size();
    storages += shard.reader->index().storages.size();
  }
  const uint64_t most = std::min<uint64_t>(limits.max_tensors, kNoStorage);
  if (std::max(tensors, storages) > most) {
    return Status(Code::kLimit,
                  fmt::format("{} tensors in all shards pass max_tensors {}",
                              std::max(tensors, storages), most));
  }
  return Status();
}

}  // namespace

Result<std::unique_ptr<const FormatReader>> JoinedReader::Join(
    std::vector<Shard> shards, std::string name, std::vector<Fact> metadata,
    const ParseLimits& limits, const Chooser& choose) {
  HAULWAY_TRY(CheckCounts(shards, limits));
  std::vector<std::shared_ptr<const ByteSource>> sources;
  for (const Shard& shard : shards) sources.push_back(shard.reader->source());
  HAULWAY_ASSIGN(Concatenation joined,
                 ConcatenateSources(std::move(sources), std::move(name)));
  std::unique_ptr<JoinedReader> reader(new JoinedReader(std::move(shards)));
  reader->source_ = std::move(joined.source);
  CheckpointIndex& index = reader->index_;
  index.metadata = std::move(metadata);
  for (uint32_t i = 0; i < reader->shards_.size(); ++i) {
    const Shard& shard = reader->shards_[i];
    const CheckpointIndex& one = shard.reader->index();
    const auto first_tensor = static_cast<uint32_t>(index.tensors.size());
    reader->Append(i, joined.starts[i]);
    for (const Entry& entry : one.entries) {
      auto chosen = choose(i, entry.name, one.tensors[entry.tensor]);
      if (!chosen.ok()) return std::move(chosen).status().Of(shard.name);
      if (*chosen) {
        index.entries.push_back({entry.name, first_tensor + entry.tensor});
      }
    }
    AddMetadata(one, &*index.metadata);
  }
  reader->SayWhatTheyAre();
  return std::unique_ptr<const FormatReader>(std::move(reader));
}

void JoinedReader::Append(uint32_t shard, uint64_t start) {
  const FormatReader& reader = *shards_[shard].reader;
  const CheckpointIndex& one = reader.index();
  first_storages_.push_back(AppendRows(one, start, &index_));
  if (one.parts.empty()) {
    index_.parts.push_back(
        {shards_[shard].name, start, reader.source()->size()});
  }
  for (const Part& part : one.parts) {
    index_.parts.push_back({part.name, start + part.offset, part.bytes});
  }
  has_digests_ |= reader.has_digests();
}

void JoinedReader::SayWhatTheyAre() {
  index_.flat = true;
  index_.offsets_computed = true;
  index_.facts = {{"shards", uint64_t{shards_.size()}}};
  std::set<std::string_view> names;
  for (const Shard& shard : shards_) {
    const CheckpointIndex& one = shard.reader->index();
    index_.offsets_computed &= one.offsets_computed;
    names.insert(Name(one.format));
  }
  index_.format = shards_.empty() ? Format::kSafetensors
                                  : shards_.front().reader->index().format;
  if (names.size() > 1) {
    index_.facts.push_back(
        {"formats", fmt::format("{}", fmt::join(names, ", "))});
  }
}

JoinedReader::Place JoinedReader::PlaceOf(uint32_t storage) const {
  const auto after = std::ranges::upper_bound(first_storages_, storage);
  const auto shard = static_cast<size_t>(after - first_storages_.begin()) - 1;
  return {shards_[shard], storage - first_storages_[shard]};
}

Status JoinedReader::CheckFrame(uint32_t storage,
                                std::span<const std::byte> before,
                                std::span<const std::byte> after) const {
  const Place place = PlaceOf(storage);
  Status status = place.shard.reader->CheckFrame(place.row, before, after);
  if (!status.ok()) return std::move(status).Of(place.shard.name);
  return status;
}

Status JoinedReader::Decode(uint32_t storage, std::span<const std::byte> frame,
                            uint64_t offset, std::span<const std::byte> stored,
                            std::span<std::byte> out) const {
  const Place place = PlaceOf(storage);
  Status status =
      place.shard.reader->Decode(place.row, frame, offset, stored, out);
  if (!status.ok()) return std::move(status).Of(place.shard.name);
  return status;
}

Result<uint64_t> JoinedReader::UnitBytes(
    uint32_t storage, std::span<const std::byte> frame) const {
  const Place place = PlaceOf(storage);
  auto bytes = place.shard.reader->UnitBytes(place.row, frame);
  if (!bytes.ok()) return std::move(bytes).status().Of(place.shard.name);
  return bytes;
}

Result<std::vector<PayloadDigest>> JoinedReader::Digests(
    uint32_t storage, std::span<const std::byte> before,
    std::span<const std::byte> after) const {
  const Place place = PlaceOf(storage);
  auto digests = place.shard.reader->Digests(place.row, before, after);
  if (!digests.ok()) return std::move(digests).status().Of(place.shard.name);
  return digests;
}

}  // namespace haulway
