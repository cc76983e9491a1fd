#include "items/copy_pool.h"

#include <algorithm>
#include <utility>

namespace haulway::python {

namespace {

// The number of copies that a consumer commonly holds while the next are made.
constexpr size_t kMostBlocks = 8;
// Below this size, the allocator itself is fast.
constexpr uint64_t kLeastBytes = uint64_t{64} << 10;

}  // namespace

Buffer CopyPool::Take(uint64_t bytes) {
  Block block = {nullptr, 0};
  if (bytes >= kLeastBytes) {
    const std::lock_guard lock(mutex_);
    const auto fit = std::ranges::find_if(free_, [&](const Block& candidate) {
      return candidate.bytes >= bytes && candidate.bytes / 2 <= bytes;
    });
    if (fit != free_.end()) {
      block = std::move(*fit);
      free_.erase(fit);
    }
  }
  if (block.memory == nullptr) {
    block = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  std::byte* data = block.memory.get();
  auto owner = std::make_shared<Returned>(std::move(block), weak_from_this());
  return Buffer(std::move(owner), {data, bytes}, true);
}

CopyPool::Returned::~Returned() {
  // If the pool is gone, the memory is just freed.
  if (const auto alive = pool.lock()) alive->Give(std::move(block));
}

void CopyPool::Give(Block block) {
  if (block.bytes < kLeastBytes) return;
  const std::lock_guard lock(mutex_);
  if (free_.size() == kMostBlocks) free_.erase(free_.begin());
  free_.push_back(std::move(block));
}

}  // namespace haulway::python
