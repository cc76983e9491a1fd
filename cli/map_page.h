// The page of `haulway map`, which the build makes from the files in map_page/.
// A page is the head, its data as JSON without '<', and the tail.

#pragma once

#include <string_view>

namespace haulway::cli {

extern const std::string_view kMapPageHead;
extern const std::string_view kMapPageTail;

}  // namespace haulway::cli
