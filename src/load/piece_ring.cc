#include "load/piece_ring.h"

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "base/checked.h"
#include "base/page_bytes.h"
#include "haulway/options.h"
#include "load/load_memory.h"

namespace haulway {

struct PieceRing::State {
  Buffer memory;
  std::mutex mutex;
  std::condition_variable changed;
  // A stack: the slot that was used last, which may still be in cache, is taken
  // first.
  std::vector<uint64_t> free HAULWAY_GUARDED_BY(mutex);  // Offsets of slots.
};

Result<PieceRing> PieceRing::Make(uint64_t slot_bytes, uint64_t slots,
                                  const LoadOptions& options) {
  uint64_t stride = 0;
  uint64_t bytes = 0;
  if (!CheckedRoundUp(slot_bytes, kPageBytes, &stride) ||
      __builtin_mul_overflow(stride, slots, &bytes)) {
    return Status(Code::kLimit, "pieces need more memory than there is");
  }
  auto state = std::make_shared<State>();
  HAULWAY_ASSIGN(state->memory, AllocateFor(options, bytes));
  state->free.reserve(slots);
  for (uint64_t i = slots; i > 0; --i) {
    state->free.push_back((i - 1) * stride);
  }
  return PieceRing(std::move(state), slot_bytes);
}

Result<Buffer> PieceRing::Take(const LoadProgress& progress) const {
  // A released slot ends the wait. This limits only how late the thread notices
  // cancellation.
  constexpr auto kPatience = std::chrono::milliseconds(20);
  std::unique_lock lock(state_->mutex);
  while (state_->free.empty()) {
    state_->changed.wait_for(lock, kPatience);
    HAULWAY_TRY(progress.CheckCancelled());
  }
  const uint64_t offset = state_->free.back();
  state_->free.pop_back();
  lock.unlock();
  const auto bytes =
      state_->memory.mutable_bytes().subspan(offset, slot_bytes_);
  const auto give_back = [state = state_, offset](std::byte*) {
    {
      const std::lock_guard held(state->mutex);
      state->free.push_back(offset);  // Within the reserved capacity.
    }
    state->changed.notify_one();
  };
  return Buffer(std::shared_ptr<std::byte>(bytes.data(), give_back), bytes,
                /*writable=*/true);
}

}  // namespace haulway
