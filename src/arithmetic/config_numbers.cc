#include "arithmetic/config_numbers.h"

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

#include "base/text.h"

namespace haulway::arithmetic {

namespace dom = simdjson::dom;

namespace {

std::optional<int64_t> FindInObject(dom::object from, std::string_view path) {
  for (size_t dot = path.find('.'); dot != path.npos; dot = path.find('.')) {
    if (from[path.substr(0, dot)].get_object().get(from)) return std::nullopt;
    path.remove_prefix(dot + 1);
  }
  int64_t number = 0;
  if (from[path].get_int64().get(number)) return std::nullopt;
  return number;
}

}  // namespace

std::optional<int64_t> ConfigNumbers::FindInMetadata(
    std::string_view name) const {
  constexpr std::string_view kOfKeys = ".attention.head_count_kv";
  if (!index_.metadata.has_value()) return std::nullopt;
  for (const Fact& fact : *index_.metadata) {
    if (fact.name != name) continue;
    if (const auto* value = std::get_if<int64_t>(&fact.value)) return *value;
    const auto* const value = std::get_if<uint64_t>(&fact.value);
    if (value != nullptr && *value <= INT64_MAX) {
      return static_cast<int64_t>(*value);
    }
    return std::nullopt;
  }
  // A GGUF file omits it if it is that of the queries.
  if (!name.ends_with(kOfKeys)) return std::nullopt;
  name.remove_suffix(std::string_view("_kv").size());
  return FindInMetadata(name);
}

Result<int64_t> ConfigNumbers::Find(std::string_view name) {
  if (const auto number = FindInMetadata(name)) return *number;
  if (!config_.has_value()) {
    HAULWAY_ASSIGN(std::string text, ReadBeside(beside_, "config.json"));
    if (text.empty()) text = "{}";
    auto parsed = json_.Parse(std::move(text));
    if (!parsed.ok()) return std::move(parsed).status().Of("config.json");
    config_ = *parsed;
  }
  if (const auto number = FindInObject(*config_, name)) return *number;
  if (const auto number =
          FindInObject(*config_, fmt::format("text_config.{}", name))) {
    return *number;
  }
  return Status(Code::kMismatch,
                fmt::format("config.json has no whole number {}", Quote(name)));
}

}  // namespace haulway::arithmetic
