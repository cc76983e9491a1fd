#include "base/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "base/no_memory.h"
#include "haulway/options.h"

namespace haulway {

Status ParallelFor(uint64_t count, int threads,
                   const std::function<Status(uint64_t index)>& work) {
  std::atomic<uint64_t> next{0};
  std::atomic<bool> failed{false};
  std::mutex mutex;
  uint64_t failed_index = 0;
  Status failure;

  const CancelScope* const scope = CancelScope::Current();
  const auto run = [&] {
    const CancelScope same(scope);
    while (!failed.load(std::memory_order_relaxed)) {
      const uint64_t index = next.fetch_add(1, std::memory_order_relaxed);
      if (index >= count) return;
      Status status = OrNoMemory([&] { return work(index); });
      if (status.ok()) continue;
      const std::lock_guard lock(mutex);
      if (failure.ok() || index < failed_index) {
        failed_index = index;
        failure = std::move(status);
      }
      failed.store(true, std::memory_order_relaxed);
    }
  };

  {
    const uint64_t helpers =
        std::min<uint64_t>(static_cast<uint64_t>(threads), count);
    std::vector<std::jthread> pool;
    try {
      pool.reserve(helpers);
      for (uint64_t i = 1; i < helpers; ++i) pool.emplace_back(run);
    } catch (const std::system_error&) {
      // The system has no more threads: the running ones do the work.
    } catch (const std::bad_alloc&) {
    }
    run();
  }
  return failure;
}

}  // namespace haulway
