// Copies elements from a window of the source, or from a piece of a storage, to
// their destination.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "load/tensor_plan.h"

namespace haulway {

// Swaps, casts and copies to `out` the elements of `target` that start in
// [begin, end). Offsets count from the source, or from the storage if
// target.base is 0. `bytes` begin at offset `begin` and extend past `end` to
// the end of the last element.
void PlaceElements(const Target& target, uint64_t begin, uint64_t end,
                   std::span<const std::byte> bytes, std::span<std::byte> out);

// Writes elements whose stored bytes are all zero. `zeroed`: whether `out` is
// already zeroed; then nothing is written unless the cast changes the bytes.
void PlaceZeros(const Target& target, std::span<std::byte> out, bool zeroed);

}  // namespace haulway
