// How much to give memcpy() at once.

#pragma once

#include <cstddef>

namespace haulway::arena {

// memcpy() chooses how to copy by size. A block that it takes for larger than
// the cache of a core goes a way that is up to a third slower than pieces of
// this size, and that no arena is too large for.
inline constexpr size_t kCopyChunk = size_t{512} << 10;

}  // namespace haulway::arena
