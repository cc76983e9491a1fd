#include "convert/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

#include "base/text.h"
#include "haulway/format.h"
#include "io/file_system.h"

namespace haulway::convert {

namespace {

template <class T>
constexpr char kKindOf = std::is_same_v<T, uint64_t>  ? 'i'
                         : std::is_same_v<T, int64_t> ? 'i'
                         : std::is_same_v<T, bool>    ? 'b'
                         : std::is_same_v<T, double>  ? 'f'
                                                      : 's';

// Returns the kind of a value, which is the same for integers with and without
// a sign, and whether it is an array.
std::pair<char, bool> KindOf(const FactValue& value) {
  const auto* const array = std::get_if<FactArray>(&value);
  if (array == nullptr) {
    return {std::visit([]<class T>(const T&) { return kKindOf<T>; }, value),
            false};
  }
  return {std::visit([]<class T>(const std::vector<T>&) { return kKindOf<T>; },
                     *array),
          true};
}

}  // namespace

Result<FactValue> ValueLike(const FactValue& old, std::string_view text) {
  const char* const end = text.data() + text.size();
  const auto number = [&](auto value) -> Result<FactValue> {
    const auto [at, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && at == end) return FactValue(value);
    return Status(
        Code::kInvalidArgument,
        fmt::format("{} is not a number like the old value", Quote(text)));
  };
  if (std::holds_alternative<int64_t>(old)) return number(int64_t{});
  if (std::holds_alternative<uint64_t>(old)) return number(uint64_t{});
  if (std::holds_alternative<double>(old)) return number(double{});
  if (std::holds_alternative<bool>(old)) {
    if (text == "true" || text == "false") return FactValue(text == "true");
    return Status(Code::kInvalidArgument,
                  fmt::format("{} is neither true nor false", Quote(text)));
  }
  if (std::holds_alternative<FactArray>(old)) {
    return Status(Code::kUnsupported, "a list cannot be set");
  }
  return FactValue(std::string(text));
}

Status CopyMetadata(const CheckpointIndex& index, Format to,
                    std::span<const Fact> set, TensorsToWrite* all,
                    std::vector<LeftOut>* left_out) {
  const Capabilities& can = EntryOf(to).can;
  std::vector<Fact> facts;
  if (index.metadata.has_value()) {
    for (const Fact& fact : *index.metadata) {
      // An index's total size does not apply to other files.
      if (!index.parts.empty() && fact.name == "total_size") continue;
      facts.push_back(fact);
    }
  }
  for (const Fact& fact : set) {
    const auto at = std::ranges::find(facts, fact.name, &Fact::name);
    if (at == facts.end()) {
      facts.push_back(fact);
      continue;
    }
    const auto* const text = std::get_if<std::string>(&fact.value);
    if (!can.values || text == nullptr) {
      const std::string_view type = at->type;
      const bool keeps_type =
          fact.type.empty() && KindOf(at->value) == KindOf(fact.value);
      *at = fact;
      if (keeps_type) at->type = type;
      continue;
    }
    auto value = ValueLike(at->value, *text);
    if (!value.ok()) return std::move(value).status().In(Quote(fact.name));
    at->value = *std::move(value);
  }
  Pairs noted;
  for (const Fact& fact : facts) {
    const auto* text = std::get_if<std::string>(&fact.value);
    if (can.values) {
      all->values.push_back(fact);
    } else if (can.metadata && text != nullptr) {
      noted.emplace_back(fact.name, *text);
    } else {
      left_out->push_back(
          {fact.name,
           fmt::format("metadata, which the format {} has no room for",
                       Name(to))});
    }
  }
  if (!noted.empty()) all->metadata = std::move(noted);
  // A safetensors file is copied with the metadata that it has.
  if (index.format != Format::kSafetensors) NoteFramework(to, &all->metadata);
  return Status();
}

void NoteFramework(Format to, std::optional<Pairs>* metadata) {
  if (to != Format::kSafetensors) return;
  if (!metadata->has_value()) metadata->emplace();
  if (std::ranges::find(**metadata, "format", &Pairs::value_type::first) ==
      (*metadata)->end()) {
    (*metadata)->emplace_back("format", "pt");
  }
}

Status CheckMetadata(std::span<const Fact> set, Format to) {
  const Capabilities& can = EntryOf(to).can;
  if (can.values) return Status();
  for (const Fact& fact : set) {
    if (can.metadata && std::holds_alternative<std::string>(fact.value)) {
      continue;
    }
    return Status(Code::kUnsupported,
                  fmt::format(
                      "the format {} has no room for {}", Name(to),
                      can.metadata ? "metadata other than text" : "metadata"))
        .In(Quote(fact.name));
  }
  return Status();
}

void EditPairs(const FileEdit& edit, Pairs* pairs) {
  for (const std::string& key : edit.unset) {
    std::erase_if(*pairs, [&](const auto& pair) { return pair.first == key; });
  }
  for (const auto& [key, value] : edit.set) {
    const auto at = std::ranges::find(*pairs, key, &Pairs::value_type::first);
    if (at == pairs->end()) {
      pairs->emplace_back(key, value);
    } else {
      at->second = value;
    }
  }
}

bool IsFile(const ByteSource& source, const std::string& path) {
  return IsSameFile(std::string(source.name()), path);
}

bool IsFileOf(const Checkpoint& from, const std::string& path) {
  const std::string source(from.source().name());
  const std::string beside = source.substr(0, source.find_last_of('/') + 1);
  return IsSameFile(source, path) ||
         std::ranges::any_of(from.index().parts, [&](const Part& part) {
           const std::string name(part.name);
           return IsSameFile(name, path) || IsSameFile(beside + name, path);
         });
}

}  // namespace haulway::convert
