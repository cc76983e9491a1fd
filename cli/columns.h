// The width of text on a terminal.

#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <string_view>

namespace haulway::cli {

// Returns the columns of UTF-8 text, two for a wide character. A combining one
// counts as one.
inline size_t Columns(std::string_view text) {
  // {fmt} knows the widths, and fills up to `text.size()` columns, which are
  // enough for any text.
  const size_t filled = fmt::formatted_size("{:<{}}", text, text.size());
  return text.size() - (filled - text.size());
}

}  // namespace haulway::cli
