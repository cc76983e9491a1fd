// Writes strings as JSON.

#pragma once

#include <string>
#include <string_view>

namespace haulway {

// Returns a JSON string, with its quotes. Requires: `text` is UTF-8.
std::string JsonText(std::string_view text);

// Puts zeros in place of the numbers that JSON lacks and Python's json writes,
// NaN, Infinity and -Infinity. All other bytes stay where they are.
void ReplaceNumbers(std::string* json);

}  // namespace haulway
