#include "s3/known_regions.h"

#include <cstddef>

namespace haulway::s3 {

namespace {

// More buckets than a program reads. At this number all are forgotten.
constexpr size_t kMostBuckets = 1'000;

std::string Key(const std::string& endpoint, const std::string& bucket) {
  return endpoint + "/" + bucket;
}

}  // namespace

KnownRegions& KnownRegions::OfThisProcess() {
  // Never destroyed: threads may outlive main().
  static auto* const regions = new KnownRegions();
  return *regions;
}

std::optional<std::string> KnownRegions::Find(const std::string& endpoint,
                                              const std::string& bucket) const {
  const std::lock_guard lock(mutex_);
  const auto found = regions_.find(Key(endpoint, bucket));
  if (found == regions_.end()) return std::nullopt;
  return found->second;
}

void KnownRegions::Note(const std::string& endpoint, const std::string& bucket,
                        const std::string& region) {
  const std::lock_guard lock(mutex_);
  if (regions_.size() >= kMostBuckets) regions_.clear();
  regions_[Key(endpoint, bucket)] = region;
}

}  // namespace haulway::s3
