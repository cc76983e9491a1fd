#include "load/load_progress.h"

namespace haulway {

Status LoadProgress::CheckCancelled() const {
  const auto is_set = [](const std::atomic<bool>* flag) {
    return flag != nullptr && flag->load(std::memory_order_relaxed);
  };
  if (is_set(options_.cancel) || is_set(stop_)) {
    return Status(Code::kCancelled, "loading was cancelled");
  }
  return Status();
}

Status LoadProgress::Advance(uint64_t bytes) {
  if (options_.progress && bytes > 0) {
    const std::lock_guard lock(mutex_);
    done_ += bytes;
    options_.progress(done_, total_);
  }
  return CheckCancelled();
}

void LoadProgress::Record(LoadStats* stats) const {
  const auto seconds = [&](Stage stage) {
    return static_cast<double>(
               nanoseconds_[static_cast<size_t>(stage)].load()) /
           1e9;
  };
  stats->read_seconds = seconds(Stage::kRead);
  stats->decode_seconds = seconds(Stage::kDecode);
  stats->verify_seconds = seconds(Stage::kVerify);
  stats->requests = requests_.load();
  stats->read_bytes = read_bytes_.load();
  stats->retries = retries_.load();
}

}  // namespace haulway
