#include "gguf/gguf_split.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <variant>

namespace haulway::gguf {

namespace {

constexpr std::string_view kNumber = "split.no";
constexpr std::string_view kCount = "split.count";
constexpr std::string_view kTensors = "split.tensors.count";

std::optional<uint64_t> NumberOf(std::span<const Fact> metadata,
                                 std::string_view key) {
  const auto found = std::ranges::find(metadata, key, &Fact::name);
  if (found == metadata.end()) return std::nullopt;
  if (const auto* number = std::get_if<uint64_t>(&found->value)) return *number;
  const auto* number = std::get_if<int64_t>(&found->value);
  if (number == nullptr || *number < 0) return std::nullopt;
  return static_cast<uint64_t>(*number);
}

}  // namespace

std::optional<FilePlace> SplitOf(std::span<const Fact> metadata) {
  const std::optional<uint64_t> count = NumberOf(metadata, kCount);
  if (!count.has_value() || *count < 2) return std::nullopt;
  return FilePlace{NumberOf(metadata, kNumber).value_or(0), *count,
                   NumberOf(metadata, kTensors)};
}

void SetSplit(const FilePlace& split, std::vector<Fact>* metadata) {
  std::erase_if(*metadata,
                [](const Fact& fact) { return IsOfSplit(fact.name); });
  metadata->push_back({std::string(kNumber), split.number, "u16"});
  metadata->push_back({std::string(kCount), split.count, "u16"});
  if (!split.tensors.has_value()) return;
  metadata->push_back(
      {std::string(kTensors), static_cast<int64_t>(*split.tensors), "i32"});
}

bool IsOfSplit(std::string_view key) {
  return key == kNumber || key == kCount || key == kTensors;
}

}  // namespace haulway::gguf
