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

// One dimension of `view`, number `d`; true if it is dropped.
Result<bool> ApplyPart(std::string_view part, size_t d, StridedView* view) {
  const int64_t size = view->shape[d];
  const std::vector<std::string_view> fields = Split(part, ':');
  if (fields.size() > 3) return Wrong(part, "has more than start:stop:step");
  std::optional<int64_t> numbers[3];
  for (size_t i = 0; i < fields.size(); ++i) {
    HAULWAY_ASSIGN(numbers[i], Number(fields[i]));
  }
  const auto stride = static_cast<uint64_t>(view->strides[d]);
  if (fields.size() == 1) {
    if (!numbers[0].has_value()) return Wrong(part, "is empty");
    const int64_t index = *numbers[0] + (*numbers[0] < 0 ? size : 0);
    if (index < 0 || index >= size) {
      return Wrong(part, fmt::format("is out of range for size {}", size));
    }
    view->offset += static_cast<uint64_t>(index) * stride;
    return true;
  }
  const int64_t step = numbers[2].value_or(1);
  if (step <= 0) return Wrong(part, "has a step that is not positive");
  const auto clamp = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound.has_value()) return otherwise;
    const int64_t from_start = *bound < 0 ? *bound + size : *bound;
    return std::clamp<int64_t>(from_start, 0, size);
  };
  const int64_t start = clamp(numbers[0], 0);
  const int64_t stop = clamp(numbers[1], size);
  const int64_t length = std::max<int64_t>(stop - start, 0);
  view->shape[d] = length / step + (length % step != 0 ? 1 : 0);
  view->offset += static_cast<uint64_t>(start) * stride;
  // With one row left the stride is never used, and may overflow.
  if (view->shape[d] > 1) view->strides[d] *= step;
  return false;
}

}  // namespace

Result<StridedView> ApplySlice(StridedView view, std::string_view slice) {
  std::vector<std::string_view> parts = Split(slice, ',');
  for (std::string_view& part : parts) {
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
  }
  // An ellipsis stands for as many whole dimensions as there are left.
  const auto ellipsis = std::ranges::find(parts, "...");
  if (ellipsis != parts.end()) {
    const size_t named = parts.size() - 1;
    const size_t whole =
        view.shape.size() > named ? view.shape.size() - named : 0;
    const auto at = parts.erase(ellipsis);
    parts.insert(at, whole, ":");
    if (std::ranges::find(parts, "...") != parts.end()) {
      return Wrong(slice, "has two ellipses");
    }
  }
  if (parts.size() > view.shape.size()) {
    return Wrong(slice, fmt::format("has {} parts: expected at most {}",
                                    parts.size(), view.shape.size()));
  }
  std::vector<bool> dropped(view.shape.size());
  for (size_t d = 0; d < parts.size(); ++d) {
    HAULWAY_ASSIGN(dropped[d], ApplyPart(parts[d], d, &view));
  }
  StridedView result;
  result.offset = view.offset;
  for (size_t d = 0; d < view.shape.size(); ++d) {
    if (dropped[d]) continue;
    result.shape.push_back(view.shape[d]);
    result.strides.push_back(view.strides[d]);
  }
  return result;
}

}  // namespace haulway::cli
