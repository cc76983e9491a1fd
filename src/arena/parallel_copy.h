// Copying bytes, on several threads where that pays.

#pragma once

#include <cstddef>
#include <span>

namespace haulway::arena {

// Copies `from` to `to`, of equal size and apart from it, on up to `threads`.
void CopyBytes(std::span<std::byte> to, std::span<const std::byte> from,
               int threads);

}  // namespace haulway::arena
