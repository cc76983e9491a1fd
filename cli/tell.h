// Prints messages for people to standard error.

#pragma once

#include <cstdio>
#include <string_view>

namespace haulway::cli {

// Prints a message to standard error. Ignores errors.
inline void Tell(std::string_view message) {
  std::fwrite(message.data(), 1, message.size(), stderr);
}

}  // namespace haulway::cli
