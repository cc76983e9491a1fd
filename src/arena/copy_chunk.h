// The size of a memcpy() call.

#pragma once

#include <cstddef>

namespace haulway::arena {

// memcpy() chooses its method by size. For a block larger than a core's cache,
// it uses a method that is up to a third slower than copying in pieces of this
// size.
inline constexpr size_t kCopyChunk = size_t{512} << 10;

}  // namespace haulway::arena
