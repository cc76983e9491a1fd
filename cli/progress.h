// One line of progress on a terminal.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace haulway::cli {

// A callback that draws on stderr; null if that is no terminal or `off`.
std::function<void(uint64_t, uint64_t)> Progress(std::string label, bool off);

}  // namespace haulway::cli
