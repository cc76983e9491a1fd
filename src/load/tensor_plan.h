// Plans the reads for tensors that go to the caller's memory. Pure: computes
// from an index and requests which ranges to read and which elements each range
// holds.

#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/load.h"
#include "haulway/status.h"
#include "load/tensor_slice.h"

namespace haulway {

// Elements and their destination: elements of a tensor, which go to the `out`
// of a request, or bytes of a frame, which go to the memory for frames.
struct Target {
  static constexpr uint32_t kFrame = 0xFFFFFFFF;
  uint32_t request = kFrame;
  uint32_t storage = kNoStorage;
  ElementGrid grid;
  uint64_t base = 0;  // Offset of the grid's element 0 in the source.
  uint64_t out = 0;   // For a frame: offset in the memory for frames.
  uint64_t out_bytes = 0;
  DType from = DType::kU8;
  DType to = DType::kU8;
  uint8_t swap_bytes = 1;
};

// Returns the target of a request, assuming that the storage's payload is
// stored raw. Fails as LoadTensors() does for a request that is invalid in
// itself.
Result<Target> MakeTarget(const CheckpointIndex& index,
                          const TensorRequest& request);

// Returns the name of what a request reads, for messages.
std::string PlaceOf(const CheckpointIndex& index, const TensorRequest& request);

// One read of the source. A direct read fills the output of `target` at byte
// `out`. Any other read fills a window, from which targets take the elements
// that start before `end`; those elements may extend past `end`.
struct TensorRead {
  uint64_t offset = 0;
  uint64_t bytes = 0;
  uint64_t end = 0;
  bool direct = false;
  uint32_t target = 0;
  uint64_t out = 0;
  uint32_t first_use = 0;  // Index in TensorPlan::uses.
  uint32_t uses = 0;
};

// The frame of a storage, in the memory for frames: `before` bytes that precede
// the payload, and `after` bytes that follow it.
struct FrameRead {
  uint32_t storage;
  uint64_t begin;
  uint64_t before;
  uint64_t after;  // Stored directly behind the `before` bytes.
};

struct TensorPlan {
  std::vector<Target> targets;
  std::vector<TensorRead> reads;  // By source offset.
  std::vector<uint32_t> uses;     // Indices of targets.
  std::vector<uint32_t> zeros;    // Targets without stored bytes.
  std::vector<FrameRead> frames;
  uint64_t frame_bytes = 0;
  // Storages that are read whole, decoded and verified. The targets of whole[i]
  // are whole_targets[whole_begin[i]] to whole_targets[whole_begin[i + 1]],
  // exclusive. Their base is 0.
  std::vector<uint32_t> whole;
  std::vector<uint32_t> whole_begin;
  std::vector<uint32_t> whole_targets;
  uint64_t tensor_bytes = 0;
  uint64_t read_bytes = 0;   // Sum over `reads`.
  uint64_t whole_bytes = 0;  // Sum over `whole`, including frames.
};

struct TensorPlanLimits {
  uint64_t largest_hole = 0;
  uint64_t largest_read = 0;
  // Dense runs of at least this many bytes are read directly into place.
  uint64_t smallest_direct = 0;
  bool verify = false;
};

// Plans the reads of `requests`. Fails as LoadTensors() does before it reads.
Result<TensorPlan> PlanTensorReads(const Checkpoint& checkpoint,
                                   std::span<const TensorRequest> requests,
                                   const TensorPlanLimits& limits);

}  // namespace haulway
