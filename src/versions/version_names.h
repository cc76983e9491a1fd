// How folders of versions are called.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace haulway {

// Returns the number of decimal digits; UINT64_MAX if it is too large.
uint64_t NumberFromDigits(std::string_view digits);

// Returns the version's number: that of its id or, without one, of its folder.
uint64_t VersionNumber(std::string_view id, std::string_view folder);

}  // namespace haulway
