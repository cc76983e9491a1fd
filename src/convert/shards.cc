#include "convert/shards.h"

#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <utility>

#include "io/model_names.h"

namespace haulway::convert {

namespace {

// Returns the code point at `*at` of UTF-8 text, and moves `*at` past it.
uint32_t NextCharacter(std::string_view text, size_t* at) {
  const auto lead = static_cast<uint8_t>(text[(*at)++]);
  int more = 0;
  if (lead >= 0xF0) {
    more = 3;
  } else if (lead >= 0xE0) {
    more = 2;
  } else if (lead >= 0xC0) {
    more = 1;
  }
  uint32_t code = more == 0 ? lead : lead & (0x3FU >> more);
  for (; more > 0 && *at < text.size(); --more) {
    code = code << 6 | (static_cast<uint8_t>(text[(*at)++]) & 0x3F);
  }
  return code;
}

// Returns a JSON string in ASCII, as Python's json writes it.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (size_t at = 0; at < text.size();) {
    const uint32_t code = NextCharacter(text, &at);
    constexpr std::string_view kEscaped = "\"\\\n\r\t\f\b";
    constexpr std::string_view kLetters = "\"\\nrtfb";
    const size_t known =
        code < 0x80 ? kEscaped.find(static_cast<char>(code)) : kEscaped.npos;
    if (known != kEscaped.npos) {
      out += '\\';
      out += kLetters[known];
    } else if (code >= 0x20 && code < 0x7F) {
      out += static_cast<char>(code);
    } else if (code > 0xFFFF) {
      const uint32_t rest = code - 0x10000;
      out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10),
                         0xDC00 + (rest & 0x3FF));
    } else if (code == 0x7F) {
      out += '\x7F';
    } else {
      out += fmt::format("\\u{:04x}", code);
    }
  }
  return out + '"';
}

}  // namespace

Split SplitIntoShards(std::span<const ShardItem> items, uint64_t most_bytes) {
  Split split;
  std::map<uint32_t, std::vector<uint32_t>> of_storage;
  std::vector<uint32_t> current;
  uint64_t current_bytes = 0;
  for (uint32_t i = 0; i < items.size(); ++i) {
    const ShardItem& item = items[i];
    if (item.storage.has_value()) {
      std::vector<uint32_t>& same = of_storage[*item.storage];
      same.push_back(i);
      if (same.size() > 1) continue;
    }
    split.total_bytes += item.bytes;
    if (item.bytes > most_bytes) {
      split.shards.push_back({i});
      continue;
    }
    if (current_bytes + item.bytes > most_bytes) {
      split.shards.push_back(std::exchange(current, {}));
      current_bytes = 0;
    }
    current.push_back(i);
    current_bytes += item.bytes;
  }
  if (!current.empty() || split.shards.empty()) {
    split.shards.push_back(std::move(current));
  }
  // The other tensors of a storage go to the end of the shard that has its
  // first tensor.
  std::vector<size_t> shard_of(items.size());
  for (size_t s = 0; s < split.shards.size(); ++s) {
    for (const uint32_t i : split.shards[s]) shard_of[i] = s;
  }
  std::vector<uint32_t> firsts;
  for (uint32_t i = 0; i < items.size(); ++i) {
    if (items[i].storage.has_value() &&
        of_storage[*items[i].storage].front() == i) {
      firsts.push_back(i);
    }
  }
  for (const uint32_t first : firsts) {
    const std::vector<uint32_t>& same = of_storage[*items[first].storage];
    std::vector<uint32_t>& shard = split.shards[shard_of[first]];
    shard.insert(shard.end(), same.begin() + 1, same.end());
  }
  return split;
}

std::string ShardPath(std::string_view path, size_t number, size_t count) {
  if (count == 1) return std::string(path);
  const std::string_view name = LastPart(path);
  size_t dot = name.find_last_of('.');
  if (dot == name.npos || dot == 0) dot = name.size();
  dot += path.size() - name.size();
  return fmt::format("{}-{:05}-of-{:05}{}", path.substr(0, dot), number + 1,
                     count, path.substr(dot));
}

std::string IndexPath(std::string_view path) {
  return std::string(path) + ".index.json";
}

std::string IndexText(std::string_view path, std::span<const ShardItem> items,
                      const Split& split) {
  std::string text = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n"
      "  \"weight_map\": {{",
      split.total_bytes);
  bool is_first = true;
  for (size_t s = 0; s < split.shards.size(); ++s) {
    const std::string file = ShardPath(path, s, split.shards.size());
    for (const uint32_t i : split.shards[s]) {
      text += is_first ? "\n" : ",\n";
      is_first = false;
      text += fmt::format("    {}: {}", Quoted(items[i].name),
                          Quoted(LastPart(file)));
    }
  }
  return text + (is_first ? "}\n}" : "\n  }\n}");
}

}  // namespace haulway::convert
