// Finds what a text could make the programs run that read it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/options.h"

namespace haulway::scan {

// Why a text is not proven to be only data.
struct Doubt {
  std::string why;
  uint64_t byte = 0;  // Offset of the reason in the text.
};

// Limit on texts and source code, which are read at once.
inline constexpr uint64_t kMostText = 64 * kMiB;

// Returns whether `text` is UTF-8 without control bytes other than white space.
bool IsPlainText(std::string_view text);

// Returns nullopt if `text` is proven to be data for the readers of texts: JSON
// and YAML parsers, Jinja and, unless `name` is that of a text, shells and
// Python. `name`: of the file, "" for none. `allowed`: names that a
// configuration may make programs import. Requires: IsPlainText(text).
std::optional<Doubt> DoubtOfText(std::string_view text, std::string_view name,
                                 std::span<const std::string> allowed = {});

}  // namespace haulway::scan
