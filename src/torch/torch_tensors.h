// From the value tree of a torch pickle to tensors: shapes, storages, names.

#pragma once

#include <cstdint>
#include <functional>

#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_vm.h"

namespace haulway::torch {

// The storage a persistent id means, as it sees it.
struct StorageUse {
  uint32_t row;             // In index->storages.
  DType dtype;              // Type of its elements.
  uint64_t first_byte = 0;  // Where the part it means begins,
  uint64_t nbytes = 0;      // and how long it is.
};

// Finds the storage of a persistent id, adding it if it is new.
using StorageResolver =
    std::function<Result<StorageUse>(const Value& persistent_id)>;

// Walks the tree under index->root: resolves every persistent id to a storage
// and every dense, quantized or meta tensor to a row of index->tensors, checks
// shapes and strides against the storages (rules M01 to M03), and names every
// tensor by its path. Sets Object::tensor; names live in `arena`.
// Fails with kCorrupt, or kLimit for too many tensors or dimensions, or where
// it takes more memory than `most`, and some.
Status ResolveTensors(const ParseLimits& limits, const TreeBudget& most,
                      const StorageResolver& resolve, TreeArena* arena,
                      CheckpointIndex* index);

}  // namespace haulway::torch
