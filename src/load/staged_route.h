// The route for storages that are read into temporary memory, within the memory
// budget, and decoded from there.

#pragma once

#include <cstdint>
#include <vector>

#include "haulway/status.h"
#include "load/loading.h"

namespace haulway {

class StagedRoute {
 public:
  // Requires: `load` outlives the route.
  explicit StagedRoute(Loading& load) : load_(load) {}

  // Adds the storage at index `position` of `load.plan.order`. Positions
  // ascend.
  void Add(uint32_t position);
  // Sorts the jobs. Call once, after all storages are added.
  void Sort();

  uint64_t jobs() const { return runs_.size(); }
  // Loads the storages of one job. Threads: different jobs may run at the same
  // time.
  Status Run(uint64_t job);

 private:
  // Neighbours in `plan.order` that one read covers.
  struct Neighbours {
    uint32_t first;
    uint32_t count;
    uint64_t offset;  // In the source.
    uint64_t length;
  };

  Loading& load_;
  std::vector<Neighbours> runs_;
};

}  // namespace haulway
