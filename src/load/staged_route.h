// The route of storages that are read into memory of the budget, and decoded
// from there.

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

  // Adds the storage at a position in `load.plan.order`; positions go up.
  void Add(uint32_t position);
  // To be called once, when all storages are added.
  void Sort();

  uint64_t jobs() const { return runs_.size(); }
  // Loads the storages of a job. Threads: one for each job.
  Status Run(uint64_t job);

 private:
  // Neighbours in `plan.order` that are read together.
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
