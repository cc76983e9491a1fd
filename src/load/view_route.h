// The route of storages that are views: the source has their bytes in memory as
// they are wanted.

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
  // `viewed` are positions in `load.rows`. `fetch_threads`: how many fetch what
  // is missing in the page cache. Requires: `load` outlives the route.
  ViewRoute(Loading& load, std::vector<uint32_t> viewed, int fetch_threads);

  uint64_t bytes() const { return bytes_; }

  // Fetches the pages of a snapshot, takes the views and checks them.
  Status Run();

 private:
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
