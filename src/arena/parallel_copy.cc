#include "arena/parallel_copy.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/thread_pool.h"
#include "haulway/status.h"

namespace haulway::arena {

namespace {

// Starting a thread costs as much as copying some hundred kilobytes.
constexpr size_t kChunk = size_t{4} << 20;

}  // namespace

void CopyBytes(std::span<std::byte> to, std::span<const std::byte> from,
               int threads) {
  if (from.empty()) return;
  if (threads < 2 || from.size() < 2 * kChunk) {
    std::memcpy(to.data(), from.data(), from.size());
    return;
  }
  const size_t chunks = (from.size() + kChunk - 1) / kChunk;
  const Status copied = ParallelFor(chunks, threads, [&](uint64_t index) {
    const size_t start = static_cast<size_t>(index) * kChunk;
    const size_t length = std::min(kChunk, from.size() - start);
    std::memcpy(to.data() + start, from.data() + start, length);
    return Status();
  });
  (void)copied;  // Copying cannot fail.
}

}  // namespace haulway::arena
