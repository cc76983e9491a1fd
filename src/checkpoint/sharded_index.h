// The index of a checkpoint in several files: model.safetensors.index.json,
// pytorch_model.bin.index.json, or a list that was made in this process.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

struct MappedTensor {
  std::string name;
  uint32_t file = 0;  // Row of files.
};

struct ShardedIndex {
  std::vector<std::string> files;  // By name; as listed where there is no map.
  // In file order; nullopt for a list, which does not say what is where.
  std::optional<std::vector<MappedTensor>> weight_map;
  // The bytes of all tensors as the writer counted them; nullopt if the index
  // does not say or says no whole number. Writers count in several ways and
  // readers ignore it.
  std::optional<uint64_t> total_size;
  std::vector<Fact> metadata;  // All of it; what is no scalar as JSON.
};

// No I/O. Fails with kCorrupt or kLimit, and kUnsupported for JSON that has
// no weight_map and is no list.
Result<ShardedIndex> ParseShardedIndex(std::span<const std::byte> json,
                                       Strictness strictness,
                                       const ParseLimits& limits);

// The index that is a list of these files. Requires: names that differ, in
// UTF-8 without control bytes.
std::string EncodeShardList(std::span<const std::string> files);

// Whether a file that begins with `head` is JSON, of which this is the only
// known kind.
bool IsShardedIndex(std::span<const std::byte> head);

}  // namespace haulway
