// The route of storages that are read where they stay, in requests that bring
// many small ones or a part of a large one.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "haulway/status.h"
#include "load/loading.h"
#include "load/read_plan.h"

namespace haulway {

class JoinedRoute {
 public:
  // Requires: `load` outlives the route.
  explicit JoinedRoute(Loading& load) : load_(load) {}

  // Adds a storage, a position in `load.to_read`; storages go up in memory.
  void Add(uint32_t r) { storages_.push_back(r); }
  // To be called once, when all storages are added.
  void Cut(const RequestLimits& limits);

  uint64_t jobs() const { return requests_.jobs.size(); }
  // Makes the requests of a job, and finishes the storages of which it brings
  // the last bytes. Threads: one for each job.
  Status Run(uint64_t job);

 private:
  // The jobs that bring a storage, the first and the last.
  struct JobSpan {
    uint32_t first;
    uint32_t last;
  };

  // What one job brings.
  struct Brought {
    uint64_t memory_begin;
    uint64_t memory_end;
    uint32_t first_storage;  // In storages_.
    uint32_t end_storage;
    // CRC-32 of its part of the storage that begins before it, and of the one
    // that ends after it.
    uint32_t head_crc32 = 0;
    uint32_t tail_crc32 = 0;
  };

  void FindJobs();
  Status Gather(const PlannedRequest& request);
  void AddCrc32(uint64_t job, uint32_t p);
  std::pair<uint64_t, uint64_t> PartOf(const Brought& brought,
                                       uint32_t p) const;
  Status Finish(uint32_t p);

  Loading& load_;
  std::vector<uint32_t> storages_;  // `p` is a position here.
  RequestPlan requests_;
  std::vector<Brought> brought_;  // Parallel to requests_.jobs.
  std::vector<JobSpan> spans_;    // Parallel to storages_, as jobs_left_.
  std::unique_ptr<std::atomic<uint32_t>[]> jobs_left_;
};

}  // namespace haulway
