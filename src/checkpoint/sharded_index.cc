#include "checkpoint/sharded_index.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/name_index.h"
#include "base/text.h"

namespace haulway {

namespace {

namespace dom = simdjson::dom;

constexpr std::string_view kListKey = "haulway_shards";

// UTF-8's byte order mark. JSON may not begin with one (RFC 8259, 8.1), and the
// programs that read indexes refuse it.
constexpr std::string_view kMark = "\xef\xbb\xbf";

std::string_view TextOf(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Removes "./", which changes nothing, from the start of a file's name.
std::string_view WithoutDot(std::string_view file) {
  while (file.starts_with("./")) {
    file.remove_prefix(2);
    file.remove_prefix(std::min(file.find_first_not_of('/'), file.size()));
  }
  return file;
}

FactValue ValueOf(dom::element element) {
  if (element.is_null()) return std::monostate();
  if (element.is_bool()) return element.get_bool().value_unsafe();
  if (element.is_int64()) return element.get_int64().value_unsafe();
  if (element.is_uint64()) return element.get_uint64().value_unsafe();
  if (element.is_string()) {
    return std::string(element.get_string().value_unsafe());
  }
  return simdjson::minify(element);
}

// Parses a whole number. Some writers divide, and write it with a fraction
// part.
std::optional<uint64_t> WholeNumber(dom::element element) {
  if (uint64_t number = 0; !element.get_uint64().get(number)) return number;
  constexpr double kExact = 9007199254740992.0;  // 2^53.
  if (double number = 0;
      !element.get_double().get(number) && number >= 0 && number < kExact &&
      number == static_cast<double>(static_cast<uint64_t>(number))) {
    return static_cast<uint64_t>(number);
  }
  return std::nullopt;
}

void ParseMetadata(dom::object object, ShardedIndex* index) {
  for (const dom::key_value_pair field : object) {
    index->metadata.push_back({std::string(field.key), ValueOf(field.value)});
    if (field.key != "total_size" || field.value.is_null()) continue;
    index->total_size = WholeNumber(field.value);
  }
}

Status ParseWeightMap(dom::object object, Strictness strictness,
                      ShardedIndex* index) {
  std::vector<MappedTensor>& map = index->weight_map.emplace();
  NameIndex names;
  const auto name_of = [&](uint32_t i) -> std::string_view {
    return map[i].name;
  };
  std::map<std::string_view, uint32_t> files;
  std::vector<std::string_view> file_of;
  for (const dom::key_value_pair field : object) {
    std::string_view file;
    if (field.value.get_string().get(file)) {
      return Status(Code::kCorrupt, "file of a tensor is no string")
          .In(Quote(field.key));
    }
    file = WithoutDot(file);
    const auto row = static_cast<uint32_t>(map.size());
    map.push_back({std::string(field.key), 0});
    const uint32_t same = names.Add(field.key, row, name_of);
    files.try_emplace(file, 0);
    if (same == NameIndex::kNone) {
      file_of.push_back(file);
      continue;
    }
    map.pop_back();
    if (strictness == Strictness::kStrict) {
      return Status(Code::kCorrupt,
                    fmt::format("weight_map has {} twice; the option lenient, "
                                "which load and convert have, takes "
                                "the last",
                                Quote(field.key)));
    }
    file_of[same] = file;
  }
  for (auto& [file, row] : files) {
    row = static_cast<uint32_t>(index->files.size());
    index->files.emplace_back(file);
  }
  for (size_t i = 0; i < file_of.size(); ++i) {
    map[i].file = files[file_of[i]];
  }
  return Status();
}

Status ParseList(dom::element list, ShardedIndex* index) {
  dom::array files;
  if (list.get_array().get(files)) {
    return Status(Code::kCorrupt,
                  fmt::format("{} of the index is no list", kListKey));
  }
  std::set<std::string_view> seen;
  for (const dom::element file : files) {
    std::string_view name;
    if (file.get_string().get(name)) {
      return Status(Code::kCorrupt, "file of the list is no string");
    }
    index->files.emplace_back(name);
    if (!seen.insert(name).second) {
      return Status(Code::kCorrupt,
                    fmt::format("{} has {} twice", kListKey, Quote(name)));
    }
  }
  return Status();
}

}  // namespace

Result<ShardedIndex> ParseShardedIndex(std::span<const std::byte> json,
                                       Strictness strictness,
                                       const ParseLimits& limits) {
  if (json.size() > limits.max_header_bytes) {
    return Status(Code::kLimit,
                  fmt::format("index of {} bytes passes max_header_bytes {}",
                              json.size(), limits.max_header_bytes));
  }
  dom::parser parser;
  const auto wrong = [] {
    return Status(Code::kCorrupt, "index is not valid JSON");
  };
  if (json.empty()) return wrong();
  if (TextOf(json).starts_with(kMark)) {
    return Status(Code::kCorrupt,
                  "index begins with a byte order mark (BOM), which JSON does "
                  "not allow: save it as UTF-8 without one")
        .At(0);
  }
  if (parser.allocate(std::max<size_t>(json.size(), 1),
                      limits.max_json_depth)) {
    return Status(Code::kLimit, "no memory to parse the index");
  }
  dom::object root;
  // Let the parser copy the text, because it may not be padded.
  if (parser
          .parse(reinterpret_cast<const char*>(json.data()), json.size(),
                 /*realloc_if_needed=*/true)
          .get_object()
          .get(root)) {
    return wrong();
  }
  ShardedIndex index;
  bool has_map = false;
  bool has_list = false;
  bool has_metadata = false;
  for (const dom::key_value_pair field : root) {
    const bool is_map = field.key == "weight_map";
    const bool is_list = field.key == kListKey;
    if (!is_map && !is_list && field.key != "metadata") continue;
    bool& seen = is_map ? has_map : is_list ? has_list : has_metadata;
    if (std::exchange(seen, true)) {
      return Status(Code::kCorrupt,
                    fmt::format("index has {} twice", field.key));
    }
    if (is_list) {
      HAULWAY_TRY(ParseList(field.value, &index));
      continue;
    }
    if (!is_map && field.value.is_null()) continue;
    dom::object object;
    if (field.value.get_object().get(object)) {
      return Status(Code::kCorrupt,
                    fmt::format("{} of the index is no object", field.key));
    }
    if (is_map) {
      HAULWAY_TRY(ParseWeightMap(object, strictness, &index));
    } else {
      ParseMetadata(object, &index);
    }
  }
  if (has_map && has_list) {
    return Status(Code::kCorrupt,
                  fmt::format("index has both weight_map and {}", kListKey));
  }
  if (!has_map && !has_list && root["haulway_unfinished"].error() == 0) {
    return Status(Code::kUnavailable,
                  "a save of this checkpoint goes on, or did not end: save it "
                  "again");
  }
  if (!has_map && !has_list) {
    return Status(Code::kUnsupported,
                  "not a checkpoint of a known format: JSON without a "
                  "weight_map");
  }
  return index;
}

std::string EncodeShardList(std::span<const std::string> files) {
  std::string json = fmt::format("{{\"{}\":[", kListKey);
  for (const std::string& file : files) {
    json += json.ends_with('[') ? "\"" : ",\"";
    for (const char c : file) {
      if (c == '"' || c == '\\') json += '\\';
      json += c;
    }
    json += '"';
  }
  return json + "]}";
}

bool IsShardedIndex(std::span<const std::byte> head) {
  std::string_view text = TextOf(head);
  // The parser says what is wrong with it.
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  char last = 0;
  for (const char c : text) {
    if (c == ' ' || c == '\t' || c == '\n' || c == '\r') continue;
    if (last == '{') return c == '"';
    if (c != '{') return false;
    last = c;
  }
  return false;
}

}  // namespace haulway
