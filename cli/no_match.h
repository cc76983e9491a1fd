// The message and exit code if a verb's filters select no tensor.

#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <string>

#include "command.h"
#include "haulway/open.h"
#include "output.h"

namespace haulway::cli {

inline int NoMatch(const std::string& file) {
  fmt::print(stderr,
             "haulway: no tensor is chosen by --include, --exclude and "
             "--prefix; of {}\n",
             Escape(ShownName(file)));
  return kNoMatch;
}

}  // namespace haulway::cli
