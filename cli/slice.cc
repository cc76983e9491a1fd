#include "slice.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>

namespace haulway::cli {

namespace {

Status Wrong(std::string_view part, std::string_view why) {
  return Status(Code::kInvalidArgument,
                fmt::format("slice '{}' {}", part, why));
}

Result<std::optional<int64_t>> Number(std::string_view text) {
  if (text.empty()) return std::optional<int64_t>();
  int64_t number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end) {
    return Wrong(text, "is not a number");
  }
  return std::optional(number);
}

std::vector<std::string_view> Split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == text.npos) return parts;
    text.remove_prefix(at + 1);
  }
}

// One dimension, of `size`. `*is_number` says that it is dropped.
Result<DimSlice> ParsePart(std::string_view part, int64_t size,
                           bool* is_number) {
  const std::vector<std::string_view> fields = Split(part, ':');
  if (fields.size() > 3) return Wrong(part, "has more than start:stop:step");
  std::optional<int64_t> numbers[3];
  for (size_t i = 0; i < fields.size(); ++i) {
    HAULWAY_ASSIGN(numbers[i], Number(fields[i]));
  }
  if (fields.size() == 1) {
    if (!numbers[0].has_value()) return Wrong(part, "is empty");
    const int64_t index = *numbers[0] + (*numbers[0] < 0 ? size : 0);
    if (index < 0 || index >= size) {
      return Wrong(part, fmt::format("is out of range for size {}", size));
    }
    *is_number = true;
    return DimSlice{index, index + 1, 1};
  }
  const int64_t step = numbers[2].value_or(1);
  if (step == 0) return Wrong(part, "has the step 0");
  // Backwards the bounds are one lower: -1 stands before the first.
  const int64_t low = step > 0 ? 0 : -1;
  const int64_t high = step > 0 ? size : size - 1;
  const auto clamp = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound.has_value()) return otherwise;
    const int64_t from_start = *bound < 0 ? *bound + size : *bound;
    return std::clamp(from_start, low, high);
  };
  return DimSlice{clamp(numbers[0], step > 0 ? low : high),
                  clamp(numbers[1], step > 0 ? high : low), step};
}

}  // namespace

Result<Slice> ParseSlice(std::string_view text,
                         std::span<const int64_t> shape) {
  std::vector<std::string_view> parts = Split(text, ',');
  for (std::string_view& part : parts) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
  }
  // An ellipsis stands for as many whole dimensions as there are left.
  const auto ellipsis = std::ranges::find(parts, "...");
  if (ellipsis != parts.end()) {
    const size_t named = parts.size() - 1;
    const size_t whole = shape.size() > named ? shape.size() - named : 0;
    const auto at = parts.erase(ellipsis);
    parts.insert(at, whole, ":");
    if (std::ranges::find(parts, "...") != parts.end()) {
      return Wrong(text, "has two ellipses");
    }
  }
  if (parts.size() > shape.size()) {
    return Wrong(text, fmt::format("has {} parts: expected at most {}",
                                   parts.size(), shape.size()));
  }
  Slice slice;
  for (size_t d = 0; d < shape.size(); ++d) {
    bool is_number = false;
    HAULWAY_ASSIGN(
        const DimSlice dim,
        ParsePart(d < parts.size() ? parts[d] : ":", shape[d], &is_number));
    slice.dims.push_back(dim);
    if (!is_number) slice.shape.push_back(static_cast<int64_t>(Count(dim)));
  }
  return slice;
}

}  // namespace haulway::cli
