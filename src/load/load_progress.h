// Progress of a load: reports to the caller, cancels, and counts.

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

// A LoadProgress calls the caller's progress function, one call at a time,
// checks whether the load is cancelled, and counts. Threads: any number at
// once.
class LoadProgress : public DecodeWatch {
 public:
  // `stop` is a second flag that cancels the load, or null. Requires: `options`
  // and `stop` outlive the LoadProgress.
  explicit LoadProgress(const LoadOptions& options,
                        const std::atomic<bool>* stop = nullptr)
      : options_(options), stop_(stop) {}

  // Sets the total number of bytes, unless it is already set.
  void SetTotal(uint64_t bytes);

  // Returns kCancelled if the caller cancelled the load, or the failure if the
  // load failed.
  Status CheckCancelled() const override;
  // Ends the load on all threads if `status` is a failure; the first failure is
  // kept. Returns `status`.
  Status Stop(Status status);
  // Counts `bytes` as done and then returns CheckCancelled().
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

  // The second flag that cancels the load, or null.
  const std::atomic<bool>* stop() const { return stop_; }

  // Sets the text for LoadStats::pages.
  void SetPages(std::string pages);

  // Copies the counters to `stats`.
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
