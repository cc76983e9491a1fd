// Planning what to read: a pure function from ranges to few large reads.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "haulway/checkpoint.h"

namespace haulway {

// A run of the source that is read as it is into a run of memory.
struct Extent {
  uint64_t source_offset;
  uint64_t memory_offset;
  uint64_t length;
};

// Where one storage's frame and payload come to lie in memory.
struct Placement {
  uint64_t frame = 0;    // Of the byte at StorageInfo::frame_offset.
  uint64_t payload = 0;  // Of the decoded bytes, aligned to 64.
};

struct ReadPlan {
  std::vector<Extent> extents;        // By source offset; never overlapping.
  std::vector<Placement> placements;  // Parallel to the storages given.
  uint64_t memory_bytes = 0;          // What the memory offsets need.
  uint64_t read_bytes = 0;
};

// Lays out the frames of the given storages in memory. Neighbours in the
// source whose payloads are aligned to 64 there stay neighbours in memory and
// are read together, with the holes between them of up to `largest_hole`
// bytes; what the file does not align gets a place of its own that is.
// Requires: every frame lies within the source, and frames do not overlap
// unless they are equal. Fails with kLimit if the sizes overflow.
Result<ReadPlan> PlanReads(std::span<const StorageInfo* const> storages,
                           uint64_t largest_hole);

}  // namespace haulway
