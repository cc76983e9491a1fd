// The page of `haulway map`, made of the files in map_page/ when it is built:
// a page is the head, its data as JSON without '<', and the tail.

#pragma once

#include <string_view>

namespace haulway::cli {

extern const std::string_view kMapPageHead;
extern const std::string_view kMapPageTail;

}  // namespace haulway::cli
