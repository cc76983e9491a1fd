// Chooses between writing through the page cache and direct I/O by the time
// they take, for files that need not be durable at once.
//
// The page cache is faster if the machine has free memory. If a host has to
// supply the memory first (a virtual machine that reports free memory to its
// host, some idle seconds later), 1 MiB of it takes 2 ms or more, and a disk
// that takes 0.5 ms is faster.

#pragma once

#include <cstdint>
#include <mutex>

#include "haulway/options.h"
#include "haulway/status.h"

namespace haulway {

enum class WriteWay : uint8_t { kCached, kDirect };

// A WriteRoute chooses the route of each request. It begins with the page
// cache, measures the current route over kWindowBytes at a time, and changes
// the route if the window took a quarter longer than the other route's last
// window. Direct I/O that was never used counts as kUntried.
//
// Threads: any number at once.
class WriteRoute {
 public:
  static constexpr uint64_t kWindowBytes = 8 * kMiB;
  // Nanoseconds per MiB. A page cache with free memory takes 250,000 to
  // 600,000.
  static constexpr uint64_t kUntried = 1'000'000;

  WriteWay Next();
  // Records the time of a request, once for each call of Next(). Requests
  // through the page cache are made one at a time; requests around it may
  // overlap, and each counts for its share of the time.
  void Took(WriteWay way, uint64_t bytes, uint64_t nanoseconds);

 private:
  static size_t Row(WriteWay way) { return static_cast<size_t>(way); }

  std::mutex mutex_;
  WriteWay way_ HAULWAY_GUARDED_BY(mutex_) = WriteWay::kCached;
  uint64_t under_way_ HAULWAY_GUARDED_BY(mutex_) = 0;  // Direct requests.
  // Nanoseconds per MiB, of the last window of each way.
  uint64_t costs_[2] HAULWAY_GUARDED_BY(mutex_) = {0, kUntried};
  uint64_t window_bytes_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t window_nanoseconds_ HAULWAY_GUARDED_BY(mutex_) = 0;
};

}  // namespace haulway
