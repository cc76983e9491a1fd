#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <system_error>

#include "haulway/options.h"

namespace haulway {

Result<LoraAdapter> ParseLoraAdapter(std::string_view text) {
  LoraAdapter made{std::string(text)};
  const size_t colon = text.rfind(':');
  if (colon != text.npos && colon + 1 < text.size()) {
    const char* const end = text.data() + text.size();
    double weight = 0;
    const auto [rest, error] =
        std::from_chars(text.data() + colon + 1, end, weight);
    // Else the colon is part of the path.
    if (error == std::errc() && rest == end) {
      made = {std::string(text.substr(0, colon)), weight};
    }
  }
  if (made.path.empty() || !std::isfinite(made.weight)) {
    return Status(Code::kInvalidArgument,
                  "expected ADAPTER or ADAPTER:WEIGHT, the weight a number");
  }
  return made;
}

}  // namespace haulway
