// Design: threads take tensors in turn; each reads the tensor of both
// checkpoints, compares them, and spools the frame if they differ. The names of
// shards state how many there are, so all frames are made before the first
// shard is written.
//
// What readers would refuse is refused before anything is made: the facts of
// the version pass through the same function as those of an index that is read.

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <span>
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
#include "io/model_names.h"
#include "tensor/strided.h"
#include "versions/change_writers.h"
#include "versions/frame_spool.h"
#include "versions/version_files.h"
#include "versions/version_folder.h"
#include "versions/version_names.h"

namespace haulway {

namespace {

// Returns a version's text; a number gets zeros as trainers write them.
std::string PaddedVersion(const std::string& version) {
  if (version.empty() || delta::NumberOf(version).empty() ||
      version.starts_with('v')) {
    return version;
  }
  return fmt::format("{:0>6}", version);
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
    version.number = NumberFromDigits(delta::NumberOf(facts_.version));
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
    std::vector<std::unique_ptr<SpooledChange>> made(entries.size());
    const int threads = options_.threads > 0 ? options_.threads : UsableCpus();
    ChangeWriters writers;
    HAULWAY_TRY(ParallelFor(entries.size(), threads, [&](uint64_t i) -> Status {
      if (options_.cancel != nullptr && options_.cancel->load()) {
        return Status(Code::kCancelled, "writing was cancelled");
      }
      Status status =
          OrNoMemory([&] { return MakeFrame(entries[i], &writers, &made[i]); });
      if (status.ok()) return status;
      return std::move(status).In(Quote(entries[i].name));
    }));
    for (std::unique_ptr<SpooledChange>& one : made) {
      if (one != nullptr) changed_.push_back(std::move(one));
    }
    return Status();
  }

  Status MakeFrame(const Entry& entry, ChangeWriters* writers,
                   std::unique_ptr<SpooledChange>* made) {
    const TensorInfo& news = after_.index().tensors[entry.tensor];
    if (news.nbytes == 0) return Status();
    HAULWAY_ASSIGN(const Buffer old,
                   BytesOf(before_, *before_.Find(entry.name)));
    HAULWAY_ASSIGN(const Buffer bytes, BytesOf(after_, news));
    auto changed = std::make_unique<SpooledChange>();
    changed->name = entry.name;
    delta::Checksum checksum(facts_.checksum);
    HAULWAY_ASSIGN(auto writer, writers->Take());
    const auto differs =
        writer->Write(facts_.change, old.bytes(), bytes.bytes(), &checksum,
                      [&](std::span<const std::byte> part) {
                        return spool_.Append(&changed->frame, part);
                      });
    writers->Return(std::move(writer));
    if (!differs.ok()) return differs.status();
    if (!*differs) return Status();
    HAULWAY_TRY(spool_.Finish(&changed->frame));
    changed->checksum = checksum.Finish();
    *made = std::move(changed);
    return Status();
  }

  Status WriteFiles(NewFolder* folder) {
    std::vector<size_t> rows;
    std::vector<uint64_t> sizes;
    for (const auto& one : changed_) {
      rows.push_back(rows.size());
      sizes.push_back(one->frame.size());
    }
    const std::vector<ShardRows> shards =
        SplitIntoShards(rows, sizes, options_.shard_bytes);
    ShardWriter writer(folder, 0, shards.size());
    for (const ShardRows& shard : shards) {
      std::vector<const SpooledChange*> tensors;
      for (const size_t row : shard) tensors.push_back(changed_[row].get());
      HAULWAY_TRY(writer.WriteDelta(tensors, spool_));
    }
    bytes_ = writer.bytes();
    return WriteIndex(DeltaIndex(facts_, writer.weight_map()), folder);
  }

  const Checkpoint& before_;
  const Checkpoint& after_;
  const delta::VersionFacts facts_;
  const WriteVersionOptions& options_;
  FrameSpool spool_;
  std::vector<std::unique_ptr<SpooledChange>> changed_;
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
    HAULWAY_ASSIGN(
        delta::VersionFacts facts,
        NewVersionFacts(PaddedVersion(options.version),
                        PaddedVersion(options.base_version), options.encoding,
                        options.checksum, LastPart(folder)));
    return VersionWriter(before, after, std::move(facts), options).Run(out);
  });
}

}  // namespace haulway
