// Shows one line of progress on a terminal.

#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace haulway::cli {

// Returns a callback that prints progress to stderr; null if stderr is not a
// terminal, or if `off`.
std::function<void(uint64_t, uint64_t)> Progress(std::string label, bool off);

// The same for files whose number is not known: the callback gets the name of
// each that is done, or "" to clear the line, so that others can be printed.
std::function<void(std::string_view)> CountedFiles(bool off);

}  // namespace haulway::cli
