// The route for storages that are read directly into their final memory. One
// request reads many small storages or a part of a large one.

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

  // Adds a storage. `r` is its position in `load.to_read`. Storages are added
  // by ascending memory offset.
  void Add(uint32_t r) { storages_.push_back(r); }
  // Cuts the storages into requests and jobs. Call once, after all storages are
  // added.
  void Cut(const RequestLimits& limits);

  uint64_t jobs() const { return requests_.jobs.size(); }
  // Makes the requests of one job, and completes each storage whose last bytes
  // the job reads. Threads: different jobs may run at the same time.
  Status Run(uint64_t job);

 private:
  // The first and the last job that read bytes of a storage.
  struct JobSpan {
    uint32_t first;
    uint32_t last;
  };

  // The memory that one job fills.
  struct Brought {
    uint64_t memory_begin;
    uint64_t memory_end;
    uint32_t first_storage;  // Index in storages_.
    uint32_t end_storage;
    // CRC-32 of the job's part of the storage that begins in an earlier job,
    // and of its part of the storage that ends in a later job.
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
  std::vector<uint32_t> storages_;  // `p` is an index here.
  RequestPlan requests_;
  std::vector<Brought> brought_;  // Parallel to requests_.jobs.
  std::vector<JobSpan> spans_;    // Parallel to storages_, like jobs_left_.
  std::unique_ptr<std::atomic<uint32_t>[]> jobs_left_;
};

}  // namespace haulway
