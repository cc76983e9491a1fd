// Remembers the regions of buckets, as reported by stores.

#pragma once

#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "haulway/status.h"
#include "net/fork_mutex.h"

namespace haulway::s3 {

// KnownRegions holds the regions that this process has learned, so that a
// client starts with the region that an earlier client ended with. A wrong
// entry is corrected like any other first guess.
//
// Threads: every method may be called from many threads at once.
class KnownRegions {
 public:
  static KnownRegions& OfThisProcess();

  // `endpoint`: "" for AWS.
  std::optional<std::string> Find(const std::string& endpoint,
                                  const std::string& bucket) const;
  void Note(const std::string& endpoint, const std::string& bucket,
            const std::string& region);

 private:
  mutable net::ForkMutex mutex_;
  std::map<std::string, std::string> regions_ HAULWAY_GUARDED_BY(mutex_);
};

}  // namespace haulway::s3
