// Plans a few large reads for many ranges. Pure.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "haulway/index.h"
#include "haulway/options.h"

namespace haulway {

// A source range that is read unchanged into contiguous memory.
struct Extent {
  uint64_t source_offset;
  uint64_t memory_offset;
  uint64_t length;
};

// How a storage is read into memory.
enum class Route : uint8_t {
  kJoined,  // Read directly into its final memory, together with neighbours.
  kAlone,   // Read directly into its final memory, piece by piece, in sequence.
  kStaged,  // Read into temporary memory, and decoded from there.
};

// The memory offsets of one storage's frame and payload.
struct StoragePlacement {
  // Where StorageInfo::frame_offset goes; unset for kStaged.
  uint64_t frame = 0;
  uint64_t payload = 0;  // Where the decoded bytes go.
  Route route = Route::kJoined;
};

struct ReadPlan {
  // kJoined only; sorted by source offset, without overlap.
  std::vector<Extent> extents;
  std::vector<StoragePlacement> placements;  // Parallel to the given storages.
  // Indices of the storages, by source offset.
  std::vector<uint32_t> order;
  // Size of the memory that the offsets refer to.
  uint64_t memory_bytes = 0;
  uint64_t read_bytes = 0;  // Sum over all routes.
};

// A storage to plan.
struct WantedStorage {
  const StorageInfo* info;
  bool alone = false;  // Use kAlone instead of kJoined.
};

// Lays out the given storages in memory, in source order. Storages that are
// compressed or not stored are kStaged. Neighbours are read together, including
// holes of up to `largest_hole` bytes between them, if keeping their distance
// in memory leaves their payloads aligned to their dtypes. Large extents have
// the same offset modulo a page in memory as in the source, so that direct I/O
// can read them; a payload that would not be aligned to its dtype there is
// aligned to 64 bytes instead.
// Requires: every frame lies within the source, and frames do not overlap
// unless they are equal. Fails with kLimit if the sizes overflow.
Result<ReadPlan> PlanReads(std::span<const WantedStorage> storages,
                           uint64_t largest_hole);

// One read of the source. A request with one part is read directly into memory.
// A request with several parts reads many small extents, including the holes
// between them, into temporary memory and copies the extents to their places.
struct PlannedRequest {
  uint64_t offset;
  uint64_t length;
  uint32_t first_part;  // Index in RequestPlan::parts.
  uint32_t parts;       // One for a direct read.
};

// Requests that one thread makes before it completes storages.
struct Job {
  uint32_t first_request;
  uint32_t requests;
  uint64_t bytes;
};

struct RequestPlan {
  // The extents, cut at request boundaries.
  std::vector<Extent> parts;
  std::vector<PlannedRequest> requests;  // Sorted by offset.
  std::vector<Job> jobs;
};

struct RequestLimits {
  uint64_t largest_request;
  uint64_t largest_hole;
  // Smallest job, except for the last and for jobs of many tiny requests.
  uint64_t job_bytes;
  // Extents below this are gathered: reading them with their neighbours and
  // copying costs less than separate reads.
  uint64_t smallest_straight = 32 * kKiB;
  // Largest gathered request, chosen to fit in cache.
  uint64_t most_gathered = 512 * kKiB;
};

// Cuts extents into requests of about equal size that end at page boundaries of
// the source, and groups requests into jobs. Requires: extents sorted by source
// offset; largest_request of at least a page.
RequestPlan CutRequests(std::span<const Extent> extents,
                        const RequestLimits& limits);

}  // namespace haulway
