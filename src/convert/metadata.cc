#include "convert/metadata.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <variant>

#include "base/text.h"
#include "haulway/format.h"
#include "io/file_system.h"

namespace haulway::convert {

void CopyMetadata(const CheckpointIndex& index, Format to,
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
    } else {
      *at = fact;
    }
  }
  std::vector<std::pair<std::string, std::string>> noted;
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
  // Other readers expect this in a safetensors file of torch's tensors.
  if (noted.empty() && to == Format::kSafetensors &&
      index.format <= Format::kTorchPackage) {
    noted.emplace_back("format", "pt");
  }
  if (!noted.empty()) all->metadata = std::move(noted);
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

void EditPairs(const FileEdit& edit,
               std::vector<std::pair<std::string, std::string>>* pairs) {
  for (const std::string& key : edit.unset) {
    std::erase_if(*pairs, [&](const auto& pair) { return pair.first == key; });
  }
  for (const auto& [key, value] : edit.set) {
    const auto at = std::ranges::find(
        *pairs, key, &std::pair<std::string, std::string>::first);
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
