// Planning what to read: a pure function from ranges to few large reads.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "haulway/index.h"
#include "haulway/options.h"

namespace haulway {

// A run of the source that is read as it is into a run of memory.
struct Extent {
  uint64_t source_offset;
  uint64_t memory_offset;
  uint64_t length;
};

// How a storage comes to memory.
enum class Route : uint8_t {
  kJoined,  // Read where it stays, together with its neighbours.
  kAlone,   // Read where it stays, piece by piece, as a sequence.
  kStaged,  // Read into other memory, and decoded from there.
};

// Where one storage's frame and payload come to lie in memory.
struct Placement {
  uint64_t frame = 0;    // Where StorageInfo::frame_offset goes; not kStaged.
  uint64_t payload = 0;  // Where the bytes in memory form go.
  Route route = Route::kJoined;
};

struct ReadPlan {
  std::vector<Extent> extents;  // kJoined only; by source offset, none overlap.
  std::vector<Placement> placements;  // Parallel to the storages given.
  std::vector<uint32_t> order;        // The storages by source offset.
  uint64_t memory_bytes = 0;          // What the memory offsets need.
  uint64_t read_bytes = 0;            // Sum over all routes.
};

// What the plan must know of a storage beside its place.
struct WantedStorage {
  const StorageInfo* info;
  bool alone = false;  // kAlone rather than kJoined.
};

// Lays out the given storages in memory, in the order of the source. What is
// compressed or not stored at all is kStaged. Neighbours whose payloads end up
// aligned to their dtype when they stay neighbours in memory are read
// together, with the holes between them of up to `largest_hole` bytes. Large
// extents lie in memory where they lie in the source modulo a page, so that
// they can be read around the page cache; a payload that would not be aligned
// to its dtype there is aligned to 64 instead.
// Requires: every frame lies within the source, and frames do not overlap
// unless they are equal. Fails with kLimit if the sizes overflow.
Result<ReadPlan> PlanReads(std::span<const WantedStorage> storages,
                           uint64_t largest_hole);

// A read of the source. Straight into memory, or gathered: many small extents
// with the holes between them, copied from there to their places.
struct PlannedRequest {
  uint64_t offset;
  uint64_t length;
  uint32_t first_part;  // In RequestPlan::parts.
  uint32_t parts;       // One if it is straight.
};

// Requests that one thread makes before it looks what is done.
struct Job {
  uint32_t first_request;
  uint32_t requests;
  uint64_t bytes;
};

struct RequestPlan {
  std::vector<Extent> parts;             // The extents, cut where requests end.
  std::vector<PlannedRequest> requests;  // By offset.
  std::vector<Job> jobs;
};

struct RequestLimits {
  uint64_t largest_request;
  uint64_t largest_hole;
  uint64_t job_bytes;  // At least, if there is so much.
  // Extents below this are gathered: copying them from a read with their
  // neighbours costs less than a read.
  uint64_t smallest_straight = 32 * kKiB;
  // To at most: so much stays in cache.
  uint64_t most_gathered = 512 * kKiB;
};

// Cuts extents into requests, evenly at whole pages of the source, and requests
// into jobs. Requires: extents by source offset; largest_request of a page or
// more.
RequestPlan CutRequests(std::span<const Extent> extents,
                        const RequestLimits& limits);

}  // namespace haulway
