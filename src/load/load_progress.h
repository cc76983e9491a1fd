// What happens during a load: told to the caller, and counted.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>

#include "decode/decode_watch.h"
#include "haulway/load.h"
#include "haulway/status.h"

namespace haulway {

enum class Stage : uint8_t { kPlan, kAllocate, kRead, kDecode, kVerify };

// A LoadProgress tells the caller what was done, one call at a time, hears
// from it when to stop, and counts. Threads: any number at once.
class LoadProgress : public DecodeWatch {
 public:
  // `stop` is another flag that ends the load, or null. Requires: `options`
  // and `stop` outlive it.
  explicit LoadProgress(const LoadOptions& options,
                        const std::atomic<bool>* stop = nullptr)
      : options_(options), stop_(stop) {}

  // Sets how many bytes there are to do, unless that is known already.
  void SetTotal(uint64_t bytes);

  // kCancelled if the caller wants the load to stop; the failure if it failed.
  Status CheckCancelled() const override;
  // Ends the load for all its threads; the first failure counts. Returns
  // `status`, which may be ok: then nothing happens.
  Status Stop(Status status);
  // Counts `bytes` as done; then as CheckCancelled().
  Status Advance(uint64_t bytes);

  void AddTime(Stage stage, const StageClock& since) {
    nanoseconds_[static_cast<size_t>(stage)].fetch_add(
        since.nanoseconds(), std::memory_order_relaxed);
  }
  void AddDecodeTime(const StageClock& since) override {
    AddTime(Stage::kDecode, since);
  }
  void AddVerifyTime(const StageClock& since) override {
    AddTime(Stage::kVerify, since);
  }
  void CountRead(uint64_t requests, uint64_t bytes) {
    requests_.fetch_add(requests, std::memory_order_relaxed);
    read_bytes_.fetch_add(bytes, std::memory_order_relaxed);
  }
  void CountRetry() { retries_.fetch_add(1, std::memory_order_relaxed); }

  // The other flag that ends the load, or null.
  const std::atomic<bool>* stop() const { return stop_; }

  // What FreshMemory::Describe() says of the memory that was loaded into.
  void SetPages(std::string pages);

  // Sets what was counted so far.
  void Record(LoadStats* stats) const;

 private:
  const LoadOptions& options_;
  const std::atomic<bool>* const stop_;
  mutable std::mutex mutex_;
  std::atomic<bool> failed_{false};
  Status failure_ HAULWAY_GUARDED_BY(mutex_);
  uint64_t total_ HAULWAY_GUARDED_BY(mutex_) = 0;
  uint64_t done_ HAULWAY_GUARDED_BY(mutex_) = 0;
  std::string pages_ HAULWAY_GUARDED_BY(mutex_);
  std::atomic<uint64_t> nanoseconds_[5]{};
  std::atomic<uint64_t> requests_{0};
  std::atomic<uint64_t> read_bytes_{0};
  std::atomic<uint64_t> retries_{0};
};

}  // namespace haulway
