#include "base/kept_memory.h"

#include <algorithm>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace haulway {

class KeptMemory::Pieces {
 public:
  explicit Pieces(size_t most) : most_(most) { kept_.reserve(most + 1); }

  // Returns an empty Buffer if none is large enough.
  Buffer Take(uint64_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto fits = std::ranges::find_if(
        kept_, [&](const Buffer& one) { return one.size() >= bytes; });
    if (fits == kept_.end()) return {};
    Buffer taken = std::move(*fits);
    kept_.erase(fits);
    return taken;
  }

  // The smallest piece goes if there are too many.
  void Keep(Buffer memory) {
    const std::lock_guard lock(mutex_);
    const auto larger =
        std::ranges::lower_bound(kept_, memory.size(), {}, &Buffer::size);
    kept_.insert(larger, std::move(memory));
    if (kept_.size() > most_) kept_.erase(kept_.begin());
  }

 private:
  const size_t most_;
  std::mutex mutex_;
  std::vector<Buffer> kept_ HAULWAY_GUARDED_BY(mutex_);  // The smallest first.
};

KeptMemory::KeptMemory(size_t most) : pieces_(std::make_shared<Pieces>(most)) {}

Result<Buffer> KeptMemory::Take(uint64_t bytes) const {
  Buffer memory = pieces_->Take(bytes);
  if (memory.size() == 0) {
    HAULWAY_ASSIGN(memory, AllocateBuffer(bytes));
  }
  const std::span<std::byte> some = memory.mutable_bytes().first(bytes);
  std::shared_ptr<const void> owner(
      some.data(), [pieces = pieces_, memory](const void*) mutable {
        pieces->Keep(std::move(memory));
      });
  return Buffer(std::move(owner), some, true);
}

}  // namespace haulway
