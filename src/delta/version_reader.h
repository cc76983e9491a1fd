// Reads a version of weights: a full checkpoint, and the deltas after it.
//
// A changed tensor is a storage of its own, encoded as kDelta: its payload is
// the tensor's bytes in the full checkpoint, and its frame, before the payload,
// are the zstd frames of all versions that changed it, the oldest first. A
// tensor that no version changed stays the storage that it is.

#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "delta/version_facts.h"
#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::delta {

// A file of a delta.
struct DeltaShard {
  std::string name;  // As in the index.
  std::unique_ptr<const FormatReader> reader;
  // By entry of the reader's index; set by CheckDelta().
  std::vector<std::string_view> checksums = {};
};

// A tensor that the index of a delta lists.
struct ListedTensor {
  std::string name;
  uint32_t shard = 0;  // Row of shards.
};

struct OpenedDelta {
  VersionFacts facts;
  std::string path;  // The path of its index.
  std::vector<DeltaShard> shards;
};

// Checks that the shards hold the listed tensors and no others, each as U8 of
// one dimension with a checksum. Fails with kMismatch or kCorrupt, naming
// tensor and file.
Status CheckDelta(std::span<const ListedTensor> listed, OpenedDelta* delta);

class VersionReader : public FormatReader {
 public:
  // `deltas`: the oldest first; each was checked with CheckDelta(). `base_path`
  // is where the full checkpoint was found. Fails with kMismatch if a delta
  // changes a tensor that the checkpoint lacks, and with kLimit if there are
  // too many tensors or bytes.
  static Result<std::unique_ptr<const VersionReader>> Make(
      std::unique_ptr<const FormatReader> base, std::string base_path,
      std::vector<OpenedDelta> deltas, std::string name,
      const ParseLimits& limits);

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override;
  // Compares the checksum of the newest version that changed the tensor.
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override;
  Result<uint64_t> UnitBytes(uint32_t storage,
                             std::span<const std::byte> frame) const override;
  bool has_digests() const override { return base_->has_digests(); }
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const override;

  // Returns whether a version changed the storage.
  bool IsChanged(uint32_t storage) const {
    return index_.storages[storage].encoding == Encoding::kDelta;
  }
  const FormatReader& base() const { return *base_; }
  const std::vector<OpenedDelta>& deltas() const { return deltas_; }

  // Decode() for a changed tensor that compares the checksum of every version.
  // Sets `at` to the row of deltas() that was applied last.
  Status DecodeEach(uint32_t storage, std::span<const std::byte> frame,
                    std::span<std::byte> tensor, uint32_t* at) const;

 private:
  // A frame of a changed tensor.
  struct Step {
    uint32_t delta;
    uint32_t shard;
    uint32_t row;  // A row of the shard's entries.
    uint64_t length;
  };
  class Builder;

  VersionReader(std::unique_ptr<const FormatReader> base,
                std::vector<OpenedDelta> deltas);

  Status Apply(uint32_t storage, std::span<const std::byte> frame,
               std::span<std::byte> tensor, uint32_t* each) const;
  Status ApplyStep(const Step& step, std::span<const std::byte> frame,
                   std::span<std::byte> tensor, bool is_checked) const;

  const std::unique_ptr<const FormatReader> base_;
  const std::vector<OpenedDelta> deltas_;
  // Steps of the changed tensors, those of one after those of the other.
  std::vector<Step> steps_;
  std::vector<uint64_t> first_steps_;  // By changed tensor, and the end.
  std::vector<uint32_t> changed_;      // Row of first_steps_, by storage.
  TreeArena arena_;
  std::shared_ptr<const ByteSource> source_;
  CheckpointIndex index_;
};

// Returns whether the file is a shard of a delta: every tensor is a zstd frame
// with a checksum. Reads the signatures of the frames.
Result<bool> IsDeltaShard(const FormatReader& reader);

}  // namespace haulway::delta
