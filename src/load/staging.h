// Memory for bytes on their way, of which only so much is in use at once.

#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <span>
#include <vector>

#include "haulway/buffer.h"
#include "haulway/status.h"
#include "load/load_progress.h"

namespace haulway {

// Threads: any number at once.
class Staging {
 public:
  // Memory that is given back when it goes out of scope. Its content is of
  // whoever had it before.
  class Lease {
   public:
    Lease() = default;
    Lease(Lease&& other) noexcept
        : staging_(std::exchange(other.staging_, nullptr)),
          memory_(std::move(other.memory_)),
          size_(other.size_) {}
    Lease& operator=(Lease&& other) = delete;
    ~Lease();

    std::span<std::byte> bytes() const {
      return memory_.mutable_bytes().first(size_);
    }

   private:
    friend class Staging;
    Staging* staging_ = nullptr;
    Buffer memory_;
    uint64_t size_ = 0;
  };

  // Requires: `progress` outlives it.
  Staging(uint64_t budget, const LoadProgress* progress)
      : budget_(budget), progress_(progress) {}

  // Waits until there is room; more than the whole budget is given to one at a
  // time. kCancelled if the load is to stop meanwhile. Requires: the calling
  // thread has no lease.
  Result<Lease> Take(uint64_t bytes);

  // The most that was in use at once.
  uint64_t peak() const;

 private:
  void GiveBack(Buffer memory);

  const uint64_t budget_;
  const LoadProgress* const progress_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Leased or idle.
  uint64_t held_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t leased_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t peak_ HAULWAY_GUARDED_BY(mutex_) = 0;
  std::vector<Buffer> idle_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway
