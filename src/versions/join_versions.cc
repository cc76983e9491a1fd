// Design: an xor is undone by itself, so the xor of all masks of a tensor is
// the mask from the first version to the last, without the bytes of either. Of
// an overwrite, the newest value of each position counts. A thread takes a
// tensor with all its frames; frames of the result wait in a spool.
//
// A full version is written from the opened chain, which is read in pieces
// while it is written.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/cursor.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "base/zstd.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_chain.h"
#include "checkpoint/version_source.h"
#include "delta/change_reader.h"
#include "delta/change_writer.h"
#include "delta/frame_reader.h"
#include "delta/version_facts.h"
#include "haulway/checkpoint.h"
#include "haulway/delta_fold.h"
#include "haulway/machine.h"
#include "haulway/save.h"
#include "versions/frame_spool.h"
#include "versions/version_catalog.h"
#include "versions/version_files.h"
#include "versions/version_folder.h"
#include "versions/version_names.h"

namespace haulway {

namespace {

constexpr uint64_t kNumberBytes = 4;

WeightVersion Described(const std::string& id, std::string_view out) {
  WeightVersion version;
  version.id = id;
  version.number = NumberFromDigits(delta::NumberOf(id));
  version.complete = true;
  version.path = out;
  return version;
}

// A frame of a tensor in one of the deltas.
struct FramePlace {
  uint32_t delta;
  uint32_t shard;
  uint32_t row;
};

// A tensor of the result.
struct FoldedTensor {
  std::vector<FramePlace> frames;  // The oldest first.
  // Its frame is empty if nothing changed in the end.
  SpooledChange made{};
};

// Positions, ascending, and what is new there.
using Values = std::vector<std::pair<uint32_t, std::byte>>;

Result<Values> ReadValues(std::span<const std::byte> frame) {
  HAULWAY_ASSIGN(delta::FrameReader places, delta::FrameReader::Open(frame));
  HAULWAY_ASSIGN(delta::FrameReader news, delta::FrameReader::Open(frame));
  std::array<std::byte, kNumberBytes> number;
  HAULWAY_TRY(places.Fill(number));
  const uint64_t count = ByteCursor(number).U32();
  HAULWAY_TRY(news.Skip(kNumberBytes + count * kNumberBytes));
  Values values;
  for (uint64_t i = 0; i < count; ++i) {
    std::byte value;
    HAULWAY_TRY(places.Fill(number));
    HAULWAY_TRY(news.Fill({&value, 1}));
    const uint32_t place = ByteCursor(number).U32();
    if (i > 0 && place <= values.back().first) {
      return Status(Code::kCorrupt, "positions of changed bytes do not ascend");
    }
    values.emplace_back(place, value);
  }
  HAULWAY_TRY(news.Finish());
  return values;
}

// Returns the content of a frame of these values.
std::vector<std::byte> ContentOf(const Values& values) {
  std::vector<std::byte> content;
  content.reserve(kNumberBytes + values.size() * (kNumberBytes + 1));
  const auto add = [&](uint32_t number) {
    for (uint64_t i = 0; i < kNumberBytes; ++i) {
      content.push_back(static_cast<std::byte>(number >> (8 * i)));
    }
  };
  add(static_cast<uint32_t>(values.size()));
  for (const auto& [place, value] : values) add(place);
  for (const auto& [place, value] : values) content.push_back(value);
  return content;
}

class Folder {
 public:
  explicit Folder(const JoinVersionsOptions& options) : options_(options) {}

  Result<WeightVersion> Run(const std::vector<WeightVersion>& chain,
                            std::string_view out) {
    for (const WeightVersion& version : chain) HAULWAY_TRY(Open(version));
    HAULWAY_ASSIGN(const auto folder,
                   NewFolder::Make(out, {.durability = options_.durability,
                                         .remote = options_.source.remote}));
    const int threads = options_.threads > 0 ? options_.threads : UsableCpus();
    HAULWAY_TRY(
        ParallelFor(tensors_.size(), threads, [&](uint64_t i) -> Status {
          if (options_.cancel != nullptr && options_.cancel->load()) {
            return Status(Code::kCancelled, "folding was cancelled");
          }
          Status status = OrNoMemory([&] { return Fold(&tensors_[i]); });
          if (status.ok()) return status;
          return std::move(status).In(Quote(tensors_[i].made.name));
        }));
    return Write(folder.get(), out);
  }

 private:
  Status Open(const WeightVersion& version) {
    if (version.kind == "full") {
      return Status(Code::kUnsupported,
                    fmt::format("version {} is a full one: deltas are folded "
                                "only from after it",
                                Quote(version.id)))
          .Of(ShownName(version.path));
    }
    HAULWAY_ASSIGN(
        const auto source,
        OpenSource(fmt::format("{}/{}", version.path, kVersionIndexName),
                   options_.source));
    HAULWAY_ASSIGN(const ShardedIndex index, ReadShardedIndex(*source, {}));
    HAULWAY_ASSIGN(delta::OpenedDelta delta, OpenDelta(*source, index, {}));
    const auto row = static_cast<uint32_t>(deltas_.size());
    if (row > 0 && (delta.facts.change != deltas_[0].facts.change ||
                    delta.facts.checksum != deltas_[0].facts.checksum)) {
      return Status(Code::kUnsupported,
                    fmt::format("deltas of one encoding and checksum can be "
                                "folded: version {} has others",
                                Quote(version.id)))
          .Of(ShownName(version.path));
    }
    deltas_.push_back(std::move(delta));
    const auto& shards = deltas_.back().shards;
    for (uint32_t s = 0; s < shards.size(); ++s) {
      const auto& entries = shards[s].reader->index().entries;
      for (uint32_t e = 0; e < entries.size(); ++e) {
        const std::string name(entries[e].name);
        const auto [at, is_new] = rows_.try_emplace(name, tensors_.size());
        if (is_new) tensors_.emplace_back().made.name = name;
        tensors_[at->second].frames.push_back({row, s, e});
      }
    }
    return Status();
  }

  Result<std::vector<std::byte>> FrameAt(const FramePlace& place) const {
    const FormatReader& shard =
        *deltas_[place.delta].shards[place.shard].reader;
    const CheckpointIndex& index = shard.index();
    const TensorInfo& tensor = index.tensors[index.entries[place.row].tensor];
    std::vector<std::byte> frame(tensor.nbytes);
    HAULWAY_TRY(shard.source()->ReadAt(
        index.storages[tensor.storage].offset + tensor.storage_offset, frame));
    return frame;
  }

  // Returns the size of the tensor that a mask changes.
  static Result<uint64_t> MaskBytes(std::span<const std::byte> frame) {
    HAULWAY_ASSIGN(delta::FrameReader reader, delta::FrameReader::Open(frame));
    if (reader.stated_bytes() != 0) return reader.stated_bytes();
    uint64_t bytes = 0;
    for (std::byte one; reader.Fill({&one, 1}).ok();) ++bytes;
    return bytes;
  }

  Status Fold(FoldedTensor* tensor) {
    if (tensor->frames.size() == 1) {
      HAULWAY_ASSIGN(const auto only, FrameAt(tensor->frames[0]));
      return Keep(only, tensor);
    }
    if (deltas_[0].facts.change == delta::Change::kOverwrite) {
      Values values;
      for (const FramePlace& place : tensor->frames) {
        HAULWAY_ASSIGN(const auto frame, FrameAt(place));
        HAULWAY_ASSIGN(const Values newer, ReadValues(frame));
        Values all;
        // Of equal positions, that of the first range is taken.
        std::ranges::set_union(newer, values, std::back_inserter(all), {},
                               &Values::value_type::first,
                               &Values::value_type::first);
        values = std::move(all);
      }
      HAULWAY_ASSIGN(const auto joined, CompressZstd(ContentOf(values)));
      return Keep(joined, tensor);
    }
    Buffer mask;
    for (const FramePlace& place : tensor->frames) {
      HAULWAY_ASSIGN(const auto frame, FrameAt(place));
      if (mask.size() == 0) {
        HAULWAY_ASSIGN(const uint64_t bytes, MaskBytes(frame));
        if (bytes == 0 || bytes > LookAtMachine().available_memory) {
          return Status(
              Code::kLimit,
              fmt::format("no memory for a tensor of {} bytes", bytes));
        }
        HAULWAY_ASSIGN(mask, AllocateBuffer(bytes));
        std::memset(mask.mutable_bytes().data(), 0, bytes);
      }
      Status status = ApplyChange(mask.mutable_bytes(), frame);
      if (!status.ok()) {
        return std::move(status).In(fmt::format(
            "version {}", Quote(deltas_[place.delta].facts.version)));
      }
    }
    const auto bytes = mask.bytes();
    const bool is_zero = std::ranges::all_of(
        bytes, [](std::byte one) { return one == std::byte{0}; });
    if (is_zero) return Status();
    HAULWAY_ASSIGN(const Buffer zeros, AllocateBuffer(bytes.size()));
    std::memset(zeros.mutable_bytes().data(), 0, bytes.size());
    HAULWAY_ASSIGN(const auto joined, delta::MakeChange(delta::Change::kXor,
                                                        zeros.bytes(), bytes));
    return Keep(joined, tensor);
  }

  Status Keep(std::span<const std::byte> frame, FoldedTensor* tensor) {
    HAULWAY_TRY(spool_.Append(&tensor->made.frame, frame));
    return spool_.Finish(&tensor->made.frame);
  }

  static Status ApplyChange(std::span<std::byte> mask,
                            std::span<const std::byte> frame) {
    HAULWAY_ASSIGN(auto reader, delta::ChangeReader::Open(delta::Change::kXor,
                                                          frame, mask.size()));
    for (size_t at = 0; at < mask.size();) {
      HAULWAY_ASSIGN(const auto step, reader.Next(mask.subspan(at)));
      at += step.bytes;
    }
    return reader.Finish();
  }

  Result<WeightVersion> Write(NewFolder* folder, std::string_view out) {
    delta::VersionFacts facts = deltas_.back().facts;
    facts.base = deltas_[0].facts.base;
    std::vector<const SpooledChange*> changed;
    for (FoldedTensor& tensor : tensors_) {
      if (tensor.made.frame.size() == 0) continue;
      const FramePlace& newest = tensor.frames.back();
      tensor.made.checksum =
          deltas_[newest.delta].shards[newest.shard].checksums[newest.row];
      changed.push_back(&tensor.made);
    }
    ShardWriter writer(folder, 0, 1);
    if (!changed.empty()) HAULWAY_TRY(writer.WriteDelta(changed, spool_));
    HAULWAY_TRY(WriteIndex(DeltaIndex(facts, writer.weight_map()), folder));
    HAULWAY_TRY(folder->Commit());
    WeightVersion version = Described(facts.version, out);
    version.base = facts.base;
    version.encoding = Name(facts.change);
    version.checksum = Name(facts.checksum);
    version.tensors = changed.size();
    version.bytes = writer.bytes();
    return version;
  }

  const JoinVersionsOptions& options_;
  std::vector<delta::OpenedDelta> deltas_;
  std::vector<FoldedTensor> tensors_;
  std::map<std::string, size_t> rows_;
  FrameSpool spool_;
};

// Writes the tensors of a checkpoint as a full version.
Result<WeightVersion> WriteFull(const std::shared_ptr<const Checkpoint>& from,
                                const std::string& id, std::string_view out,
                                const JoinVersionsOptions& options) {
  HAULWAY_ASSIGN(const auto folder,
                 NewFolder::Make(out, {.durability = options.durability,
                                       .remote = options.source.remote}));
  const auto& entries = from->entries();
  std::vector<size_t> rows;
  std::vector<uint64_t> sizes;
  uint64_t total = 0;
  for (const Entry& entry : entries) {
    rows.push_back(rows.size());
    sizes.push_back(from->index().tensors[entry.tensor].nbytes);
    total += sizes.back();
  }
  const std::vector<ShardRows> shards =
      SplitIntoShards(rows, sizes, options.shard_bytes);
  ShardWriter writer(folder.get(), 0, shards.size());
  for (const ShardRows& shard : shards) {
    if (options.cancel != nullptr && options.cancel->load()) {
      return Status(Code::kCancelled, "compacting was cancelled");
    }
    std::vector<TensorToWrite> tensors;
    for (const size_t row : shard) {
      const TensorInfo& tensor = from->index().tensors[entries[row].tensor];
      auto source = MakeProducedSource(
          tensor.nbytes,
          [from, &tensor]() -> Result<Buffer> {
            HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(tensor.nbytes));
            HAULWAY_TRY(from->Read(tensor, bytes.mutable_bytes()));
            return bytes;
          },
          std::string(from->source().name()));
      tensors.push_back(
          {.name = std::string(entries[row].name),
           .dtype = tensor.dtype,
           .shape = {tensor.shape.begin(), tensor.shape.end()},
           .bytes = {
               .length = tensor.nbytes,
               .source = tensor.nbytes > 0 ? std::move(source) : nullptr}});
    }
    HAULWAY_TRY(writer.WriteFull(std::move(tensors)));
  }
  HAULWAY_TRY(
      WriteIndex(FullIndex(id, total, writer.weight_map()), folder.get()));
  HAULWAY_TRY(folder->Commit());
  WeightVersion version = Described(id, out);
  version.kind = "full";
  version.tensors = entries.size();
  version.bytes = writer.bytes();
  return version;
}

// Fails with kInvalidArgument if the folder `out` is called as that of another
// version.
Status CheckOut(std::string_view out, std::string_view id) {
  while (out.ends_with('/')) out.remove_suffix(1);
  const Status status = delta::CheckFolder(LastPart(out), id);
  if (status.ok()) return status;
  return Status(Code::kInvalidArgument, status.message()).Of(ShownName(out));
}

Result<const WeightVersion*> FindNamed(VersionCatalog* catalog,
                                       std::string_view name,
                                       std::string_view uri) {
  HAULWAY_ASSIGN(const WeightVersion* found,
                 name.empty() ? catalog->Newest() : catalog->Find(name));
  if (found != nullptr) return found;
  return Status(Code::kNotFound,
                name.empty()
                    ? "no complete version of weights is here"
                    : fmt::format("version {} is not here", Quote(name)))
      .Of(ShownName(uri));
}

}  // namespace

Result<WeightVersion> FoldVersions(std::string_view uri, std::string_view out,
                                   std::string_view start, std::string_view to,
                                   const JoinVersionsOptions& options) {
  return OrNoMemory([&]() -> Result<WeightVersion> {
    HAULWAY_ASSIGN(VersionCatalog catalog,
                   VersionCatalog::Open(uri, options.source));
    HAULWAY_ASSIGN(const WeightVersion* goal, FindNamed(&catalog, to, uri));
    HAULWAY_ASSIGN(const std::vector<WeightVersion> chain,
                   FindChain(&catalog, start, *goal));
    if (chain.empty()) {
      return Status(
          Code::kInvalidArgument,
          fmt::format("version {} is the start: expected an older one",
                      Quote(goal->id)));
    }
    HAULWAY_TRY(CheckOut(out, goal->id));
    const std::string& first = chain.front().base;
    if (chain.front().kind != "full" && !IsVersionNamed(first, start)) {
      return Status(Code::kNotFound,
                    fmt::format("version {} does not build on version {}: the "
                                "deltas end at version {}",
                                Quote(goal->id), Quote(start), Quote(first)))
          .Of(ShownName(uri));
    }
    return Folder(options).Run(chain, out);
  });
}

Result<WeightVersion> CompactVersion(std::string_view uri, std::string_view out,
                                     std::string_view version,
                                     const JoinVersionsOptions& options) {
  return OrNoMemory([&]() -> Result<WeightVersion> {
    HAULWAY_ASSIGN(VersionCatalog catalog,
                   VersionCatalog::Open(uri, options.source));
    HAULWAY_ASSIGN(const WeightVersion* found,
                   FindNamed(&catalog, version, uri));
    HAULWAY_TRY(CheckOut(out, found->id));
    HAULWAY_ASSIGN(auto source, OpenSource(fmt::format("{}/{}", found->path,
                                                       kVersionIndexName),
                                           options.source));
    HAULWAY_ASSIGN(const std::shared_ptr<const Checkpoint> opened,
                   Checkpoint::Open(std::move(source)));
    return WriteFull(opened, found->id, out, options);
  });
}

}  // namespace haulway
