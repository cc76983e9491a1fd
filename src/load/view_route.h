// The route for storages that are views: the source has their bytes in memory,
// in the final form.

#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "decode/storage_decoder.h"
#include "haulway/buffer.h"
#include "haulway/status.h"
#include "load/loading.h"

namespace haulway {

class ViewRoute {
 public:
  // `viewed` are positions in `load.rows`. `fetch_threads`: number of threads
  // that prefetch into the page cache. Requires: `load` outlives the route.
  ViewRoute(Loading& load, std::vector<uint32_t> viewed, int fetch_threads);

  uint64_t bytes() const { return bytes_; }

  // Prefetches the missing pages of a snapshot, creates the views and verifies
  // them.
  Status Run();

 private:
  Status Authenticate();
  Status Fetch();
  Status Take();
  Status Check(uint32_t row, const StoredBytes& bytes,
               std::optional<uint32_t> crc32) const;
  Result<std::vector<std::optional<uint32_t>>> LargeCrc32s(
      std::span<const Buffer> frames) const;

  Loading& load_;
  const std::vector<uint32_t> viewed_;
  const int fetch_threads_;
  uint64_t bytes_ = 0;
};

}  // namespace haulway
