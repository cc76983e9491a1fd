// Reverses the byte order of elements in place.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace haulway {

// Reverses each run of `unit` bytes. An incomplete unit at the end is
// unchanged. Requires: unit is 1, 2, 4 or 8.
void SwapBytes(std::span<std::byte> bytes, uint8_t unit);

}  // namespace haulway
