// Design: threads take tensors in turn; each reads the tensor of both
// checkpoints, compares them, and keeps the frame and the checksum if they
// differ. The names of shards state how many there are, so all frames are made
// before the first shard is written.
//
// What readers would refuse is refused before anything is made: the facts of
// the version pass through the same function as those of an index that is read.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/name_index.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "checkpoint/version_source.h"
#include "decode/encoding_traits.h"
#include "delta/change_writer.h"
#include "delta/checksum.h"
#include "delta/version_facts.h"
#include "haulway/delta.h"
#include "haulway/folder.h"
#include "haulway/machine.h"
#include "haulway/save.h"
#include "io/model_names.h"
#include "tensor/strided.h"
#include "versions/version_folder.h"

namespace haulway {

namespace {

// A tensor that changed.
struct ChangedTensor {
  std::string name;
  std::vector<std::byte> frame;
  std::string checksum;
};

// Returns a JSON string.
std::string JsonString(std::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json += '\\';
      json += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
    } else {
      json += c;
    }
  }
  return json + '"';
}

// Returns the index of a version, as Python's json writes it.
std::string IndexOf(
    const delta::VersionFacts& facts,
    const std::vector<std::pair<std::string, std::string>>& weight_map) {
  std::string json = fmt::format(
      "{{\"metadata\": {{\"version\": {}, \"base_version\": {}, "
      "\"delta_encoding\": \"{}\", \"compression_format\": \"zstd\", "
      "\"checksum_format\": \"{}\"}}, \"weight_map\": {{",
      JsonString(facts.version), JsonString(facts.base), Name(facts.change),
      Name(facts.checksum));
  for (size_t i = 0; i < weight_map.size(); ++i) {
    json += fmt::format("{}{}: {}", i == 0 ? "" : ", ",
                        JsonString(weight_map[i].first),
                        JsonString(weight_map[i].second));
  }
  return json + "}}";
}

// Returns a version's text; a number gets zeros as trainers write them.
std::string PaddedVersion(const std::string& version) {
  if (version.empty() || delta::NumberOf(version).empty() ||
      version.starts_with('v')) {
    return version;
  }
  return fmt::format("{:0>6}", version);
}

Status WrongOption(std::string_view option, std::string_view value,
                   std::string_view expected) {
  return Status(
      Code::kInvalidArgument,
      fmt::format("{} {}: expected {}", option, Quote(value), expected));
}

Result<delta::VersionFacts> FactsFrom(const WriteVersionOptions& options,
                                      std::string_view folder) {
  delta::VersionFacts facts;
  facts.version = PaddedVersion(options.version);
  facts.base = PaddedVersion(options.base_version);
  const auto change = delta::ChangeFromName(options.encoding);
  if (!change.has_value()) {
    return WrongOption("encoding", options.encoding, "xor or overwrite");
  }
  facts.change = *change;
  const auto checksum = delta::ChecksumKindFromName(options.checksum);
  if (!checksum.has_value()) {
    return WrongOption("checksum", options.checksum,
                       "xxh3-128, blake3 or adler32");
  }
  facts.checksum = *checksum;
  // What readers would refuse.
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

// Returns the bytes of a tensor as a safetensors file has them: a view if the
// source has them so, else a copy.
Result<Buffer> BytesOf(const Checkpoint& checkpoint, const TensorInfo& tensor) {
  const StorageInfo& storage = checkpoint.index().storages[tensor.storage];
  const bool is_plain =
      IsAsInMemory(storage) && storage.frame_offset == storage.offset &&
      storage.frame_end == storage.offset + storage.stored_bytes &&
      IsContiguous(tensor.shape, tensor.strides);
  if (is_plain) {
    auto view = checkpoint.source().View(
        storage.offset + tensor.storage_offset * ItemBytes(tensor.dtype),
        tensor.nbytes);
    if (view.has_value()) return *std::move(view);
  }
  HAULWAY_ASSIGN(Buffer bytes, AllocateBuffer(tensor.nbytes));
  HAULWAY_TRY(checkpoint.Read(tensor, bytes.mutable_bytes()));
  return bytes;
}

class VersionWriter {
 public:
  VersionWriter(const Checkpoint& before, const Checkpoint& after,
                delta::VersionFacts facts, const WriteVersionOptions& options)
      : before_(before),
        after_(after),
        facts_(std::move(facts)),
        options_(options) {}

  Result<WeightVersion> Run(std::string_view out) {
    HAULWAY_TRY(CheckSameTensors());
    HAULWAY_ASSIGN(const auto folder,
                   NewFolder::Make(out, {.durability = options_.durability,
                                         .remote = options_.remote}));
    HAULWAY_TRY(MakeFrames());
    HAULWAY_TRY(WriteFiles(folder.get()));
    HAULWAY_TRY(folder->Commit());
    WeightVersion version;
    version.id = facts_.version;
    for (const char c : delta::NumberOf(facts_.version)) {
      version.number = version.number * 10 + static_cast<uint64_t>(c - '0');
    }
    version.base = facts_.base;
    version.encoding = Name(facts_.change);
    version.checksum = Name(facts_.checksum);
    version.tensors = changed_.size();
    version.bytes = bytes_;
    version.complete = true;
    version.path = out;
    return version;
  }

 private:
  // Fails unless both checkpoints have the same tensors.
  Status CheckSameTensors() const {
    for (const Entry& entry : before_.entries()) {
      if (after_.Find(entry.name) != nullptr) continue;
      return Status(Code::kMismatch,
                    fmt::format("tensor {} is missing from the new weights",
                                Quote(entry.name)))
          .Of(after_.source().name());
    }
    for (const Entry& entry : after_.entries()) {
      const TensorInfo& news = after_.index().tensors[entry.tensor];
      const TensorInfo* const old = before_.Find(entry.name);
      const auto wrong = [&](std::string_view what) {
        return Status(Code::kMismatch,
                      fmt::format("tensor {} {}", Quote(entry.name), what))
            .Of(after_.source().name());
      };
      if (old == nullptr) return wrong("is not in the old weights");
      if (old->dtype != news.dtype) {
        return wrong(fmt::format("has another dtype: expected {}, found {}",
                                 Name(old->dtype), Name(news.dtype)));
      }
      if (!std::ranges::equal(old->shape, news.shape)) {
        return wrong("has another shape than in the old weights");
      }
      if (news.storage == kNoStorage || old->storage == kNoStorage ||
          news.kind == TensorKind::kMeta || old->kind == TensorKind::kMeta) {
        return wrong("has no data");
      }
      if (news.conjugate || news.negative || old->conjugate || old->negative) {
        return wrong("is a conjugated or negated view");
      }
    }
    return Status();
  }

  Status MakeFrames() {
    const auto& entries = after_.entries();
    std::vector<std::optional<ChangedTensor>> made(entries.size());
    const int threads = options_.threads > 0 ? options_.threads : UsableCpus();
    HAULWAY_TRY(ParallelFor(entries.size(), threads, [&](uint64_t i) -> Status {
      if (options_.cancel != nullptr && options_.cancel->load()) {
        return Status(Code::kCancelled, "writing was cancelled");
      }
      Status status =
          OrNoMemory([&] { return MakeFrame(entries[i], &made[i]); });
      if (status.ok()) return status;
      return std::move(status).In(Quote(entries[i].name));
    }));
    for (std::optional<ChangedTensor>& one : made) {
      if (one.has_value()) changed_.push_back(*std::move(one));
    }
    return Status();
  }

  Status MakeFrame(const Entry& entry,
                   std::optional<ChangedTensor>* made) const {
    const TensorInfo& news = after_.index().tensors[entry.tensor];
    if (news.nbytes == 0) return Status();
    HAULWAY_ASSIGN(const Buffer old,
                   BytesOf(before_, *before_.Find(entry.name)));
    HAULWAY_ASSIGN(const Buffer bytes, BytesOf(after_, news));
    if (std::memcmp(old.data(), bytes.data(), bytes.size()) == 0) {
      return Status();
    }
    HAULWAY_ASSIGN(auto frame, delta::MakeChange(facts_.change, old.bytes(),
                                                 bytes.bytes()));
    delta::Checksum checksum(facts_.checksum);
    checksum.Update(bytes.bytes());
    made->emplace(ChangedTensor{std::string(entry.name), std::move(frame),
                                checksum.Finish()});
    return Status();
  }

  // Returns the end of the shard that begins with a changed tensor.
  size_t EndOfShard(size_t first) const {
    uint64_t bytes = 0;
    size_t end = first;
    for (; end < changed_.size(); ++end) {
      bytes += changed_[end].frame.size();
      const bool is_full =
          options_.shard_bytes != 0 && bytes > options_.shard_bytes;
      if (is_full && end > first) break;
    }
    return end;
  }

  Status WriteFiles(NewFolder* folder) {
    std::vector<size_t> firsts;
    for (size_t first = 0; first < changed_.size(); first = EndOfShard(first)) {
      firsts.push_back(first);
    }
    std::vector<std::pair<std::string, std::string>> weight_map;
    for (size_t i = 0; i < firsts.size(); ++i) {
      const std::string name =
          fmt::format("model-{:05}-of-{:05}.safetensors", i, firsts.size());
      const size_t end =
          i + 1 < firsts.size() ? firsts[i + 1] : changed_.size();
      HAULWAY_TRY(WriteShard(folder, name, firsts[i], end));
      for (size_t t = firsts[i]; t < end; ++t) {
        weight_map.emplace_back(changed_[t].name, name);
      }
    }
    const std::string index = IndexOf(facts_, weight_map);
    HAULWAY_ASSIGN(const auto sink,
                   folder->OpenFile(std::string(kVersionIndexName)));
    HAULWAY_TRY(sink->Begin(index.size()).status());
    HAULWAY_TRY(sink->WriteAt(0, std::as_bytes(std::span(index))));
    return sink->Commit(index.size());
  }

  Status WriteShard(NewFolder* folder, const std::string& name, size_t first,
                    size_t end) {
    TensorsToWrite tensors;
    tensors.in_order = true;
    tensors.metadata.emplace();
    for (size_t t = first; t < end; ++t) {
      const ChangedTensor& one = changed_[t];
      tensors.tensors.push_back(
          {.name = one.name,
           .dtype = DType::kU8,
           .shape = {static_cast<int64_t>(one.frame.size())},
           .bytes = {.length = one.frame.size(), .bytes = one.frame.data()}});
      tensors.metadata->emplace_back(one.name, one.checksum);
    }
    HAULWAY_ASSIGN(const auto sink, folder->OpenFile(name));
    HAULWAY_ASSIGN(const WriteStats stats,
                   Save(std::move(tensors), Format::kSafetensors, *sink));
    bytes_ += stats.bytes;
    return Status();
  }

  const Checkpoint& before_;
  const Checkpoint& after_;
  const delta::VersionFacts facts_;
  const WriteVersionOptions& options_;
  std::vector<ChangedTensor> changed_;
  uint64_t bytes_ = 0;
};

}  // namespace

Result<WeightVersion> WriteVersion(const Checkpoint& before,
                                   const Checkpoint& after,
                                   std::string_view out,
                                   const WriteVersionOptions& options) {
  return OrNoMemory([&]() -> Result<WeightVersion> {
    std::string_view folder = out;
    while (folder.ends_with('/')) folder.remove_suffix(1);
    HAULWAY_ASSIGN(delta::VersionFacts facts,
                   FactsFrom(options, LastPart(folder)));
    return VersionWriter(before, after, std::move(facts), options).Run(out);
  });
}

}  // namespace haulway
