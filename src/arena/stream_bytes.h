// Copying bytes that nobody reads soon.

#pragma once

#include <cstddef>
#include <span>

namespace haulway::arena {

// Copies `from` to `to` past the processor's caches, if it can. An ordinary
// store first reads the line that it overwrites; without these reads, a copy
// that no cache could hold takes about half the time. A copy that fits into a
// cache, and that another process reads at once, is faster by memcpy().
//
// The bytes are visible to other threads in the same order as if memcpy() had
// written them. Requires: equal sizes, no overlap.
void StreamBytes(std::span<std::byte> to, std::span<const std::byte> from);

}  // namespace haulway::arena
