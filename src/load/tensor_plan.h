// Planning what tensors in the caller's memory need of a source. Pure: from an
// index and requests to reads, and what to do with the bytes of each.

#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/status.h"
#include "load/tensor_slice.h"

namespace haulway {

// Elements that go to memory: of a tensor, to the `out` of a request, or the
// bytes of a frame, to the memory for frames.
struct Target {
  static constexpr uint32_t kFrame = 0xFFFFFFFF;
  uint32_t request = kFrame;
  uint32_t storage = kNoStorage;
  ElementGrid grid;
  uint64_t base = 0;  // In the source, of the grid's element 0.
  uint64_t out = 0;   // For a frame: where it goes in the frames' memory.
  uint64_t out_bytes = 0;
  DType from = DType::kU8;
  DType to = DType::kU8;
  uint8_t swap_bytes = 1;
};

// The target of a request, of a storage whose payload lies as it is. Fails as
// LoadTensors() does for a request that is wrong in itself.
Result<Target> MakeTarget(const CheckpointIndex& index,
                          const TensorRequest& request);

// One request to the source. It is read straight into the output, at byte
// `out` of that of `target`, or into a window of memory from which targets
// take the elements that start before `end`; those may reach past it.
struct TensorRead {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t end = 0;
  bool direct = false;
  uint32_t target = 0;
  uint64_t out = 0;
  uint32_t first_use = 0;  // In TensorPlan::uses.
  uint32_t uses = 0;
};

// The frame of a storage, in the memory for frames.
struct FrameBytes {
  uint32_t storage;
  uint64_t begin;
  uint64_t before;
  uint64_t after;  // Directly after those before.
};

struct TensorPlan {
  std::vector<Target> targets;
  std::vector<TensorRead> reads;  // By offset.
  std::vector<uint32_t> uses;     // Targets.
  std::vector<uint32_t> zeros;    // Targets without a byte in the source.
  std::vector<FrameBytes> frames;
  uint64_t frame_bytes = 0;
  // Storages that are read whole, decoded and checked, and the targets of
  // each: those numbered from whole_begin[i] to whole_begin[i + 1] in
  // whole_targets. Their base is 0.
  std::vector<uint32_t> whole;
  std::vector<uint32_t> whole_begin;
  std::vector<uint32_t> whole_targets;
  uint64_t tensor_bytes = 0;
  uint64_t read_bytes = 0;   // Sum over `reads`.
  uint64_t whole_bytes = 0;  // Sum over `whole`, frames included.
};

struct TensorPlanLimits {
  uint64_t largest_hole = 0;
  uint64_t largest_read = 0;
  // From here on a dense run is read straight into place.
  uint64_t smallest_direct = 0;
  bool verify = false;
};

// Fails as LoadTensors() does before it reads.
Result<TensorPlan> PlanTensorReads(const Checkpoint& checkpoint,
                                   std::span<const TensorRequest> requests,
                                   const TensorPlanLimits& limits);

}  // namespace haulway
