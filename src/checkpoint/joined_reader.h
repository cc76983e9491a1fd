// Joins several open files into one checkpoint.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/format.h"
#include "haulway/options.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct Shard {
  std::string name;  // As in the index or list.
  std::unique_ptr<const FormatReader> reader;
};

// A JoinedReader is a flat dict of the tensors of several files of any formats.
// The shards' facts about storages hold, except that offsets are those in the
// concatenation of all files, each of which starts at a page. It keeps the
// shards' readers, and uses them for frames, decoding and digests. Of objects
// that contain tensors, only the names remain.
class JoinedReader : public FormatReader {
 public:
  // Returns whether a tensor of a shard belongs to the checkpoint. Fails if it
  // contradicts the facts about the shards.
  using Chooser = std::function<Result<bool>(
      uint32_t shard, std::string_view name, const TensorInfo& tensor)>;

  // Joins the shards. `name` is the name of the source. Metadata of a shard is
  // added to `metadata` unless the key exists. Fails as `choose` does, and with
  // kLimit if there are too many tensors or bytes in total.
  static Result<std::unique_ptr<const FormatReader>> Join(
      std::vector<Shard> shards, std::string name, std::vector<Fact> metadata,
      const ParseLimits& limits, const Chooser& choose);

  const CheckpointIndex& index() const override { return index_; }
  const std::shared_ptr<const ByteSource>& source() const override {
    return source_;
  }
  Status CheckFrame(uint32_t storage, std::span<const std::byte> before,
                    std::span<const std::byte> after) const override;
  Status Decode(uint32_t storage, std::span<const std::byte> frame,
                uint64_t offset, std::span<const std::byte> stored,
                std::span<std::byte> out) const override;
  Result<uint64_t> UnitBytes(uint32_t storage,
                             std::span<const std::byte> frame) const override;
  bool has_digests() const override { return has_digests_; }
  Result<std::vector<PayloadDigest>> Digests(
      uint32_t storage, std::span<const std::byte> before,
      std::span<const std::byte> after) const override;

 private:
  // The shard and row of a storage.
  struct Place {
    const Shard& shard;
    uint32_t row;
  };

  explicit JoinedReader(std::vector<Shard> shards)
      : shards_(std::move(shards)) {}

  void Append(uint32_t shard, uint64_t start);
  void SayWhatTheyAre();
  Place PlaceOf(uint32_t storage) const;

  std::vector<Shard> shards_;
  std::vector<uint32_t> first_storages_;  // By shard.
  std::shared_ptr<const ByteSource> source_;
  CheckpointIndex index_;
  bool has_digests_ = false;
};

}  // namespace haulway
