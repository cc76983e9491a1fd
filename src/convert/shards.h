// Splits a model into several files, as huggingface_hub does.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace haulway::convert {

// The facts about a tensor that a split needs.
struct ShardItem {
  std::string_view name;
  // Size as written: of the tensor, or of its whole storage.
  uint64_t bytes = 0;
  // Storage shared with other tensors.
  std::optional<uint32_t> storage = std::nullopt;
};

struct Split {
  std::vector<std::vector<uint32_t>> shards;  // Numbers of items.
  uint64_t total_bytes = 0;  // Counts each storage once, by its first tensor.
};

// Implements split_state_dict_into_shards_factory() of huggingface_hub: items
// stay in order, a shard that would grow past `most_bytes` is closed, a larger
// item gets its own shard, and items of one storage stay together.
Split SplitIntoShards(std::span<const ShardItem> items, uint64_t most_bytes);

// Returns "a/model-00002-of-00003.safetensors" for "a/model.safetensors", or
// the path itself if `count` is 1.
std::string ShardPath(std::string_view path, size_t number, size_t count);

// Returns "a/model.safetensors.index.json" for "a/model.safetensors".
std::string IndexPath(std::string_view path);

// Returns the text of the index as json.dump(..., indent=2) writes it:
// total_size, and for each tensor the name of its file without the folder.
std::string IndexText(std::string_view path, std::span<const ShardItem> items,
                      const Split& split);

}  // namespace haulway::convert
