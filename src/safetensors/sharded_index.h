// A model in several safetensors files, by its model.safetensors.index.json.

#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/format.h"
#include "haulway/limits.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "haulway/verify.h"

namespace haulway::safetensors {

struct MappedTensor {
  std::string name;
  uint32_t file = 0;  // Row of files.
};

struct ShardedIndex {
  std::vector<std::string> files;        // By name.
  std::vector<MappedTensor> weight_map;  // In file order.
  std::optional<uint64_t> total_size;
  std::vector<Fact> metadata;  // All of it; what is no scalar as JSON.
};

// No I/O. Fails with kCorrupt or kLimit, and kUnsupported for JSON that has
// no weight_map.
Result<ShardedIndex> ParseShardedIndex(std::span<const std::byte> json,
                                       Strictness strictness,
                                       const ParseLimits& limits);

// Whether a file that begins with `head` is JSON, of which this is the only
// known kind.
bool IsShardedIndex(std::span<const std::byte> head);

// Opens every file of the map, beside `source`, as one checkpoint. kStrict
// refuses a difference between the map and the files: a tensor that is
// missing, in another file, in two or in none of the map, or a total_size
// that is not that of all tensors. kLenient does as readers do and takes of
// each file what the map says; only missing tensors are refused.
Result<std::unique_ptr<const FormatReader>> OpenSharded(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options);
Result<VerifyReport> VerifySharded(std::shared_ptr<const ByteSource> source,
                                   const VerifyOptions& options);

}  // namespace haulway::safetensors
