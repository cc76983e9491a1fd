#include <algorithm>
#include <cstring>

#include "arena/copy_chunk.h"
#include "haulway/arena.h"

namespace haulway {

void CopyBytes(std::span<std::byte> to, std::span<const std::byte> from) {
  for (size_t at = 0; at < from.size(); at += arena::kCopyChunk) {
    const size_t length = std::min(arena::kCopyChunk, from.size() - at);
    std::memcpy(to.data() + at, from.data() + at, length);
  }
}

}  // namespace haulway
