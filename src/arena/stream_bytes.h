// Copies bytes that will not be read soon.

#pragma once

#include <cstddef>
#include <span>

namespace haulway::arena {

// Copies `from` to `to` around the processor's caches, if possible. An ordinary
// store first reads the cache line; without these reads, a copy larger than any
// cache takes about half the time. A copy that fits in a cache, and that
// another process reads at once, is faster with memcpy().
//
// The bytes become visible to other threads in the same order as with memcpy().
// Requires: equal sizes, no overlap.
void StreamBytes(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace haulway::arena
