// What a text could make a program run that reads it.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace haulway::scan {

// Why a text is not proven to be read as data alone.
struct Doubt {
  std::string why;
  uint64_t byte = 0;  // Where that stands in the text.
};

// Whether `text` is UTF-8 with no control bytes but white space.
bool IsPlainText(std::string_view text);

// Nullopt if `text` is shown to be data for the readers of texts: parsers of
// JSON and YAML, Jinja, and where `name` does not say that it is a text, shells
// and Python. `name`: of the file, "" for none. `allowed`: names that a
// configuration may have programs import. Requires: IsPlainText(text).
std::optional<Doubt> DoubtOfText(std::string_view text, std::string_view name,
                                 std::span<const std::string> allowed = {});

}  // namespace haulway::scan
