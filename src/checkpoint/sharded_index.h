// The index of a checkpoint in several files: model.safetensors.index.json,
// pytorch_model.bin.index.json, or a list created in this process.

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
  std::vector<std::string> files;  // Sorted by name; for a list, in its order.
  // Sorted by file; nullopt for a list, which does not map tensors to files.
  std::optional<std::vector<MappedTensor>> weight_map;
  // Total bytes of all tensors by the writer's count; nullopt if the index does
  // not have it, or not as a whole number. Writers count in different ways, and
  // readers ignore it.
  std::optional<uint64_t> total_size;
  // All metadata. Values other than scalars are JSON.
  std::vector<Fact> metadata;
};

// Parses an index. No I/O. Fails with kCorrupt or kLimit, with kUnavailable for
// kUnfinishedIndex, and with kUnsupported for other JSON that has no weight_map
// and is not a list.
Result<ShardedIndex> ParseShardedIndex(std::span<const std::byte> json,
                                       Strictness strictness,
                                       const ParseLimits& limits);

// Encodes an index that is a list of files. Requires: the names differ, and are
// UTF-8 without control bytes.
std::string EncodeShardList(std::span<const std::string> files);

// Returns whether a file that begins with `head` is JSON; an index is the only
// known format in JSON.
bool IsShardedIndex(std::span<const std::byte> head);

}  // namespace haulway
