// What programs compare with the safetensors package.
//
// Files are opened and written through open.h and save.h, as those of every
// format. Functions here keep no state: any number of threads may call them.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace haulway {

// The longest header that the package reads, in bytes.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;

// The message with which the safetensors package, release 0.8.0, refuses a
// file whose header is `header` (the JSON with its padding) and which has
// `data_bytes` bytes behind the header. Returns nullopt if the package reads
// such a file. Needs memory of a few times the size of the header.
std::optional<std::string> SafetensorsRefusal(std::string_view header,
                                              uint64_t data_bytes);

}  // namespace haulway
