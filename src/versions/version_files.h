// The files of a version: shards and index, as trainers write them.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "delta/version_facts.h"
#include "haulway/save.h"
#include "haulway/status.h"
#include "versions/frame_spool.h"
#include "versions/version_folder.h"

namespace haulway {

// A tensor that changed. Requires: outlives the writing of its shard.
struct SpooledChange {
  std::string name;
  FrameSpool::Frame frame;
  std::string checksum;
};

// A shard by its tensors, rows of what is written.
using ShardRows = std::vector<size_t>;

// Splits rows, whose bytes `sizes` gives, into shards of at most `shard_bytes`
// each, unless one tensor alone has more; 0: one shard. No rows, no shards.
std::vector<ShardRows> SplitIntoShards(const std::vector<size_t>& rows,
                                       const std::vector<uint64_t>& sizes,
                                       uint64_t shard_bytes);

// A tensor and the shard that holds it.
using WeightMap = std::vector<std::pair<std::string, std::string>>;

// Writes shards into a folder, as numbers `first` and up of `count` shards.
class ShardWriter {
 public:
  ShardWriter(NewFolder* folder, uint64_t first, uint64_t count)
      : folder_(folder), next_(first), count_(count) {}

  // Shards of deltas have numbers from 0 on, those of full versions from 1.
  Status WriteDelta(const std::vector<const SpooledChange*>& tensors,
                    const FrameSpool& spool);
  Status WriteFull(std::vector<TensorToWrite> tensors);

  const WeightMap& weight_map() const { return weight_map_; }
  uint64_t bytes() const { return bytes_; }

 private:
  Status Write(TensorsToWrite tensors, uint64_t number);

  NewFolder* const folder_;
  uint64_t next_;
  const uint64_t count_;
  WeightMap weight_map_;
  uint64_t bytes_ = 0;
};

// Returns the index of a version, as Python's json writes it.
std::string DeltaIndex(const delta::VersionFacts& facts,
                       const WeightMap& weight_map);
std::string FullIndex(std::string_view version, uint64_t total_bytes,
                      const WeightMap& weight_map);

// Writes the index, which must be the last file of a version.
Status WriteIndex(std::string_view json, NewFolder* folder);

// Returns the facts of a new delta. Fails with kInvalidArgument, with the
// reason, for what readers would refuse. `folder`: the name of its folder.
Result<delta::VersionFacts> NewVersionFacts(std::string version,
                                            std::string base,
                                            std::string_view encoding,
                                            std::string_view checksum,
                                            std::string_view folder);

}  // namespace haulway
