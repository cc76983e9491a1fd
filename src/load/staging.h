// Temporary memory for a load, limited by a budget.

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

// A Staging leases temporary memory and reuses it. Threads: any number at once.
class Staging {
 public:
  // Memory that is returned when the lease goes out of scope. Its initial
  // content is undefined.
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

  // `budget`: largest number of bytes held at once. Requires: `progress`
  // outlives the Staging.
  Staging(uint64_t budget, const LoadProgress* progress)
      : budget_(budget), progress_(progress) {}

  // Waits until `bytes` fit in the budget. A lease larger than the budget is
  // granted only while no other lease exists. Fails with kCancelled if the load
  // is cancelled meanwhile. Requires: the calling thread has no lease.
  Result<Lease> Take(uint64_t bytes);

  // Returns the largest number of bytes held at once, leased or idle.
  uint64_t peak() const;

 private:
  void GiveBack(Buffer memory);

  const uint64_t budget_;
  const LoadProgress* const progress_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Leased and idle bytes.
  uint64_t held_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t leased_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t peak_ HAULWAY_GUARDED_BY(mutex_) = 0;
  std::vector<Buffer> idle_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway
