// Loading tensors, or slices of them, into memory that the caller owns.
//
// What a slice does not need is not read: a slice becomes runs of the source,
// neighbouring runs become few large reads, and the elements go from there to
// their places, byte-swapped and cast on the way. Large dense runs are read
// straight into place. Storages that are compressed, encrypted or to be
// verified are read whole, piece by piece.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "haulway/cast.h"
#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/export.h"
#include "haulway/load.h"
#include "haulway/status.h"

namespace haulway {

// The elements start, start + step, ... of one dimension, until `stop` is
// reached or passed, which is not among them. Numbers count from the front:
// start and stop lie in [0, size], for a negative step in [-1, size).
struct DimSlice {
  int64_t start = 0;
  int64_t stop = 0;
  int64_t step = 1;  // Not 0.
};

// How many elements it holds. Requires: step is not 0.
HAULWAY_EXPORT uint64_t Count(const DimSlice& slice);

// All of a storage, seen as elements of one type.
struct StorageElements {
  uint32_t storage = 0;  // Row of checkpoint.index().storages.
  DType dtype = DType::kU8;
};

// One tensor, or part of it, and where it goes.
struct TensorRequest {
  uint32_t tensor = 0;          // Row of checkpoint.index().tensors.
  std::vector<DimSlice> slice;  // One for each dimension; none: all of it.
  std::optional<DType> dtype;   // Cast to this; by default as stored.
  // Dense and row-major, of exactly the size that this comes to. Borrowed.
  std::span<std::byte> out;
  // Instead of a tensor; what is left of a last element is left out.
  std::optional<StorageElements> storage = std::nullopt;
  // Whether `out` holds zeros: pages of it that are to, are not touched then.
  bool zeroed = false;
};

// Of how many bytes `out` must be. Fails as LoadTensors() does for a request
// that is wrong in itself.
HAULWAY_EXPORT Result<uint64_t> RequestBytes(const Checkpoint& checkpoint,
                                             const TensorRequest& request);

// Fills every request's `out`, reading what several need once. Elements are as
// stored, in this machine's byte order: `conjugate` and `negative` are the
// caller's to apply. Of storages it touches it checks the frames, and with
// options.verify the digests, for which it reads them whole. The memory that
// it takes beside the caller's is bounded by options.memory_budget; of a
// compressed storage it needs what the engine needs.
// Requires: valid rows; requests whose memory does not overlap.
// Fails with kInvalidArgument for a slice that leaves the shape, memory of
// another size, and a meta tensor; kUnsupported for a cast that CanCast()
// denies: all these before anything is read. Else as reading and decoding do;
// then what `out` holds is unspecified.
HAULWAY_EXPORT Result<LoadStats> LoadTensors(
    const Checkpoint& checkpoint, std::span<const TensorRequest> requests,
    const LoadOptions& options = {});

struct PlannedRead {
  uint64_t offset = 0;  // In the source.
  uint64_t bytes = 0;
};

struct PlannedReads {
  std::vector<PlannedRead> reads;  // In the order in which they are begun.
  uint64_t tensor_bytes = 0;       // Asked for, as stored.
  uint64_t read_bytes = 0;         // Frames and holes included.
};

// What LoadTensors() would read; reads nothing, and looks at no `out`. Fails
// as it does for requests that are wrong in themselves; with kLimit if the
// reads are too many to list.
HAULWAY_EXPORT Result<PlannedReads> PlanTensors(
    const Checkpoint& checkpoint, std::span<const TensorRequest> requests,
    const LoadOptions& options = {});

}  // namespace haulway
