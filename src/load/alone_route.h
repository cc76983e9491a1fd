// The route for storages that one thread reads from start to end. The thread
// decodes and digests each piece while the piece is in its core's cache.

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
  // How much of a storage is read at once.
  enum class Pieces : uint8_t {
    kInCache,   // As much as fits in the core's cache.
    kRequests,  // As much as the largest request: reads wait for a device.
    kWhole,     // All of it: the source decodes it in one pass.
  };
  // Requires: `load` outlives the route.
  AloneRoute(Loading& load, Pieces pieces) : load_(load), pieces_(pieces) {}

  // Adds a storage. `r` is its position in `load.to_read`.
  void Add(uint32_t r) { storages_.push_back(r); }
  // Groups the storages into jobs. Call once, after all storages are added.
  void Group();

  uint64_t jobs() const { return groups_.size(); }
  // Loads the storages of one job. Threads: different jobs may run at the same
  // time.
  Status Run(uint64_t job);

 private:
  struct Sequence;
  uint64_t PieceBytesOf(size_t together) const;
  Result<Sequence> Begin(uint32_t r, uint64_t piece_bytes) const;

  Loading& load_;
  const Pieces pieces_;
  std::vector<uint32_t> storages_;
  std::vector<std::span<const uint32_t>> groups_;  // Parts of storages_.
};

}  // namespace haulway
