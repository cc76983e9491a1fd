// --include and --exclude: globs, or /regular expressions/.

#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace haulway::cli {

// Exclude wins; without an include, everything is included.
bool Selected(std::string_view name, const std::vector<std::string>& include,
              const std::vector<std::string>& exclude);
// Orders "layer.2" before "layer.10".
bool NaturalLess(std::string_view a, std::string_view b);

}  // namespace haulway::cli
