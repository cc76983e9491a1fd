// The route of storages that one thread reads from start to end, and decodes
// and digests while each piece is in a core's cache.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "haulway/status.h"
#include "load/loading.h"
#include "load/payload_stream.h"

namespace haulway {

class AloneRoute {
 public:
  // `is_cached`: whether the source is read out of the page cache. Requires:
  // `load` outlives the route.
  AloneRoute(Loading& load, bool is_cached)
      : load_(load), is_cached_(is_cached) {}

  // Adds a storage, a position in `load.to_read`.
  void Add(uint32_t r) { storages_.push_back(r); }
  // To be called once, when all storages are added.
  void Group();

  uint64_t jobs() const { return groups_.size(); }
  // Loads the storages of a job. Threads: one for each job.
  Status Run(uint64_t job);

 private:
  struct Sequence;
  Result<Sequence> Begin(uint32_t r, uint64_t piece_bytes) const;

  Loading& load_;
  const bool is_cached_;
  std::vector<uint32_t> storages_;
  std::vector<std::span<const uint32_t>> groups_;  // Parts of storages_.
};

}  // namespace haulway
