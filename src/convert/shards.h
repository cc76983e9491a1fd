// Splitting a model into several files, as huggingface_hub does.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace haulway::convert {

// What a split needs to know of a tensor.
struct ShardItem {
  std::string_view name;
  uint64_t bytes = 0;  // As written: of the tensor, or all of its storage.
  std::optional<uint32_t> storage = std::nullopt;  // Shared with others.
};

struct Split {
  std::vector<std::vector<uint32_t>> shards;  // Numbers of items.
  uint64_t total_bytes = 0;  // Each storage counted once, by its first tensor.
};

// split_state_dict_into_shards_factory() of huggingface_hub: items in order, a
// new shard where one would grow past `most_bytes`, one of its own for an item
// that is larger, and all of one storage together.
Split SplitIntoShards(std::span<const ShardItem> items, uint64_t most_bytes);

// "a/model-00002-of-00003.safetensors" of "a/model.safetensors"; the path
// itself if `count` is 1.
std::string ShardPath(std::string_view path, size_t number, size_t count);

// "a/model.safetensors.index.json".
std::string IndexPath(std::string_view path);

// The text of the index, as json.dump(..., indent=2) writes it: total_size, and
// for each tensor the file's name without its folder.
std::string IndexText(std::string_view path, std::span<const ShardItem> items,
                      const Split& split);

}  // namespace haulway::convert
