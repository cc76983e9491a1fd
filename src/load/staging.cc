#include "load/staging.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "haulway/options.h"

namespace haulway {

namespace {

// Allocation sizes are multiples of this, so that most memory can be reused.
constexpr uint64_t kGrain = 512 * kKiB;

}  // namespace

Staging::Lease::~Lease() {
  if (staging_ != nullptr) staging_->GiveBack(std::move(memory_));
}

Result<Staging::Lease> Staging::Take(uint64_t bytes) {
  // A returned lease ends the wait. This limits only how late the thread
  // notices cancellation.
  constexpr auto kPatience = std::chrono::milliseconds(20);
  const uint64_t capacity =
      std::max<uint64_t>(1, bytes / kGrain + (bytes % kGrain != 0)) * kGrain;
  Lease lease;
  std::unique_lock lock(mutex_);
  while (leased_ != 0 && (leased_ >= budget_ || capacity > budget_ - leased_)) {
    changed_.wait_for(lock, kPatience);
    HAULWAY_TRY(progress_->CheckCancelled());
  }
  const auto fits = std::ranges::find_if(
      idle_, [&](const Buffer& idle) { return idle.size() == capacity; });
  if (fits != idle_.end()) {
    lease.memory_ = std::move(*fits);
    idle_.erase(fits);
  } else {
    // Free idle memory so that idle and leased memory stay within the budget.
    while (!idle_.empty() && held_ + capacity > budget_) {
      held_ -= idle_.back().size();
      idle_.pop_back();
    }
    HAULWAY_ASSIGN(lease.memory_, AllocateBuffer(capacity));
    held_ += capacity;
    peak_ = std::max(peak_, held_);
  }
  leased_ += capacity;
  lease.size_ = bytes;
  lease.staging_ = this;
  return lease;
}

uint64_t Staging::peak() const {
  const std::lock_guard lock(mutex_);
  return peak_;
}

void Staging::GiveBack(Buffer memory) {
  {
    const std::lock_guard lock(mutex_);
    const uint64_t capacity = memory.size();
    leased_ -= capacity;
    try {
      idle_.push_back(std::move(memory));
    } catch (const std::bad_alloc&) {
      held_ -= capacity;  // The memory is freed instead of kept.
    }
  }
  changed_.notify_all();
}

}  // namespace haulway
