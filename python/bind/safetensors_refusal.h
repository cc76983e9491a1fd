// What the safetensors package says of a file that it refuses.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace haulway::python {

// The longest header that the package reads.
inline constexpr uint64_t kMostHeaderBytes = 100'000'000;

// The message of the package, release 0.8.0, for a file with this header (the
// JSON with its padding) and so many bytes of data behind it; nullopt where it
// would take the file. Takes memory of a few times the header's size.
std::optional<std::string> RefusalOf(std::string_view header,
                                     uint64_t data_bytes);

}  // namespace haulway::python
