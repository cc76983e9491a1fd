// From a window of a source, or a piece of a storage, to where elements go.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "load/tensor_plan.h"

namespace haulway {

// Puts the elements of `target` that start in [begin, end), byte-swapped and
// cast, to their places in `out`. `bytes` lie at `begin` of the source the
// target's base counts from, and go on past `end` as far as those elements do.
void PlaceElements(const Target& target, uint64_t begin, uint64_t end,
                   std::span<const std::byte> bytes, std::span<std::byte> out);

// The same for elements all of whose bytes are zero. `zeroed`: so are those of
// `out`, which are left alone if they are right.
void PlaceZeros(const Target& target, std::span<std::byte> out, bool zeroed);

}  // namespace haulway
