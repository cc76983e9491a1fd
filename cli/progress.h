// Shows one line of progress on a terminal.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace haulway::cli {

// Returns a callback that prints progress to stderr; null if stderr is not a
// terminal, or if `off`.
std::function<void(uint64_t, uint64_t)> Progress(std::string label, bool off);

}  // namespace haulway::cli
