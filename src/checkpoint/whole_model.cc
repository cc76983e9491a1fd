#include "checkpoint/whole_model.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "checkpoint/format_registry.h"
#include "checkpoint/source_list.h"
#include "io/model_names.h"

namespace haulway {

namespace {

using SourcePtr = std::shared_ptr<const ByteSource>;

constexpr std::string_view kAlone =
    "the option alone, which load and convert have, opens this part by itself";

Result<SourcePtr> ListParts(const SourcePtr& source, const FilePlace& place,
                            const PartName& name, bool is_strict) {
  std::vector<SourcePtr> parts;
  for (uint64_t number = 1; number <= place.count; ++number) {
    if (number == name.number) {
      parts.push_back(source);
      continue;
    }
    const std::string other = name.Other(number);
    auto part = source->OpenNeighbour(other);
    if (part.ok()) {
      parts.push_back(*std::move(part));
    } else if (part.status().code() != Code::kNotFound) {
      return std::move(part).status().In(fmt::format("part {}", Quote(other)));
    } else if (is_strict) {
      return Status(Code::kMismatch,
                    fmt::format("part {} of {} of the model is missing: "
                                "expected {}; {}",
                                number, place.count, Quote(other), kAlone));
    }
  }
  return ListSourcesAs(std::string(source->name()), std::move(parts));
}

}  // namespace

Result<Detected> DetectWhole(SourcePtr source, const OpenOptions& options) {
  HAULWAY_ASSIGN(const FormatEntry* format,
                 DetectFormat(*source, options.strictness));
  Detected found{std::move(source), format};
  if (format->place == nullptr || options.alone) return found;
  auto reader = format->open(found.source, options);
  // The caller opens the file again, and reports its fault.
  if (!reader.ok()) return found;
  found.reader = *std::move(reader);
  const auto& metadata = found.reader->index().metadata;
  if (!metadata.has_value()) return found;
  const std::optional<FilePlace> place = format->place->get(*metadata);
  if (!place.has_value()) return found;
  const bool is_strict = options.strictness == Strictness::kStrict;
  const std::string_view path = found.source->name();
  const auto name = ParsePart(LastPart(path));
  if (!name.has_value() || name->count != place->count ||
      name->number != place->number + 1) {
    if (!is_strict) return found;
    const PartName expected{"NAME", 0, place->count, format->suffixes.front()};
    return Status(
        Code::kMismatch,
        fmt::format("the file is part {} of {} of a model, and its name does "
                    "not tell those of the others: expected {}; {}",
                    place->number + 1, place->count,
                    expected.Other(place->number + 1), kAlone));
  }
  HAULWAY_ASSIGN(found.source,
                 ListParts(found.source, *place, *name, is_strict));
  HAULWAY_ASSIGN(found.format, DetectFormat(*found.source, options.strictness));
  found.reader = nullptr;
  return found;
}

}  // namespace haulway
