// Tensors of a checkpoint as bytes to write: decoded, cast and dense, piece by
// piece, so that none of them is ever in memory whole unless it must.

#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/dtype.h"
#include "haulway/index.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/status.h"

namespace haulway::convert {

struct SourceOptions {
  int threads = 1;  // For one read, if the read needs several.
  // Size of one block, if elements have to be brought together first.
  uint64_t block_bytes = uint64_t{16} << 20;
  bool verify = true;  // Check the digests of what is read whole.
  const std::atomic<bool>* cancel = nullptr;
};

// As many as there are, where none are asked for.
int ThreadsOf(int asked);
// SourceOptions::block_bytes for `threads` that work at once: each may hold two
// blocks of a tensor, and what is cast of them.
uint64_t BlockBytesFor(uint64_t memory_budget, int threads);

SourceOptions SourceOptionsFor(const WriteOptions& write, bool verify);

// Whether the elements of a tensor are numbers with a sign, so that they can
// be resolved where it is conjugate or negative.
bool CanResolve(DType dtype);

// Fails where ElementsOf() must not be asked for: with kUnsupported for signs
// that cannot be resolved, with kLimit for a tensor that repeats its storage
// so often that no file was meant. Strides of 0 let a few bytes claim to be
// more than any disk holds.
Status CheckElements(const CheckpointIndex& index, const TensorInfo& tensor);

// The elements of row `tensor` of `from`, dense and in row-major order, as
// `to`. Signs are resolved. Requires: a tensor with data, CanCast(), and
// CanResolve() where it is conjugate or negative. `from` must outlive it.
BytesToWrite ElementsOf(const Checkpoint& from, uint32_t tensor, DType to,
                        const SourceOptions& options);

// Elements [begin, end) of row `storage` of `from`, seen as `dtype`, as `to`.
BytesToWrite ElementsOfStorage(const Checkpoint& from, uint32_t storage,
                               DType dtype, uint64_t begin, uint64_t end,
                               DType to, const SourceOptions& options);

// Checks the digests of those of the storages that have some, in bounded
// memory. Fails as LoadPieces() does.
Status CheckStorages(const Checkpoint& from, std::span<const uint32_t> storages,
                     const SourceOptions& options);

}  // namespace haulway::convert
