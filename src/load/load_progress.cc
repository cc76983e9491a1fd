#include "load/load_progress.h"

#include <algorithm>
#include <utility>

namespace haulway {

void LoadProgress::SetTotal(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  if (total_ == 0) total_ = bytes;
}

Status LoadProgress::CheckCancelled() const {
  const auto is_set = [](const std::atomic<bool>* flag) {
    return flag != nullptr && flag->load(std::memory_order_relaxed);
  };
  if (is_set(options_.cancel) || is_set(stop_)) {
    return Status(Code::kCancelled, "loading was cancelled");
  }
  if (!failed_.load(std::memory_order_acquire)) return Status();
  const std::lock_guard lock(mutex_);
  return failure_;
}

Status LoadProgress::Stop(Status status) {
  if (status.ok()) return status;
  const std::lock_guard lock(mutex_);
  if (failure_.ok()) failure_ = status;
  failed_.store(true, std::memory_order_release);
  return status;
}

Status LoadProgress::Advance(uint64_t bytes) {
  if (options_.progress && bytes > 0) {
    const std::lock_guard lock(mutex_);
    // Holes that were read too may exceed the planned total.
    done_ = std::min(done_ + bytes, total_);
    options_.progress(done_, total_);
  }
  return CheckCancelled();
}

void LoadProgress::SetPages(std::string pages) {
  const std::lock_guard lock(mutex_);
  pages_ = std::move(pages);
}

void LoadProgress::Record(LoadStats* stats) const {
  const auto seconds = [&](Stage stage) {
    return static_cast<double>(
               nanoseconds_[static_cast<size_t>(stage)].load()) /
           1e9;
  };
  stats->plan_seconds = seconds(Stage::kPlan);
  stats->allocate_seconds = seconds(Stage::kAllocate);
  stats->read_seconds = seconds(Stage::kRead);
  stats->decode_seconds = seconds(Stage::kDecode);
  stats->verify_seconds = seconds(Stage::kVerify);
  stats->requests = requests_.load();
  stats->read_bytes = read_bytes_.load();
  stats->retries = retries_.load();
  const std::lock_guard lock(mutex_);
  stats->pages = pages_;
}

}  // namespace haulway
