// Tensors of a checkpoint as bytes to write: decoded, cast and dense. They are
// read piece by piece, so that a tensor is in memory as a whole only if it must
// be.

#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "base/kept_memory.h"
#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::convert {

struct SourceOptions {
  int threads = 1;  // For one read, if it needs several.
  // Size of a block, if elements must be gathered first.
  uint64_t block_bytes = uint64_t{16} << 20;
  bool verify = true;  // Check the digests of storages that are read whole.
  const std::atomic<bool>* cancel = nullptr;
  // Called by DigestTensors() with the bytes of each piece, by any thread.
  std::function<void(uint64_t bytes)> digested = nullptr;
  KeptMemory memory{2};  // Holds the blocks.
};

// Returns `asked`, or the number of usable processors if that is 0.
int ThreadsOf(int asked);
// Returns SourceOptions::block_bytes for `threads` threads: each may hold two
// blocks of a tensor, and their cast elements.
uint64_t BlockBytesFor(uint64_t memory_budget, int threads);

SourceOptions SourceOptionsFor(const WriteOptions& write, bool verify);

// Fails if ElementsOf() must not be called: with kUnsupported for signs that
// cannot be resolved, with kLimit for a tensor that repeats its storage
// implausibly often. With strides of 0, a few bytes can claim to be more than
// any disk holds.
Status CheckElements(const CheckpointIndex& index, const TensorInfo& tensor);

class StoredSource;

// ElementSources are the bytes of many tensors of one checkpoint, of which most
// share one source.
class ElementSources {
 public:
  // `from` must outlive what this returns.
  ElementSources(const Checkpoint& from, const SourceOptions& options);

  // Returns the elements of row `tensor`, dense and in row-major order, cast to
  // `to`, with signs resolved. Requires: a tensor with data, CanCast(),
  // CheckElements(), and that nobody reads yet.
  BytesToWrite Of(uint32_t tensor, DType to);

  // Returns elements [begin, end) of row `storage`, interpreted as `dtype` and
  // cast to `to`.
  BytesToWrite OfStorage(uint32_t storage, DType dtype, uint64_t begin,
                         uint64_t end, DType to);

 private:
  const Checkpoint& from_;
  const SourceOptions& options_;
  const std::shared_ptr<StoredSource> stored_;
};

// Returns ElementSources::Of() for a single tensor.
BytesToWrite ElementsOf(const Checkpoint& from, uint32_t tensor, DType to,
                        const SourceOptions& options);

// Checks the digests of the storages that have some, in bounded memory. Fails
// as LoadPieces() does.
Status CheckStorages(const Checkpoint& from, std::span<const uint32_t> storages,
                     const SourceOptions& options);

}  // namespace haulway::convert
