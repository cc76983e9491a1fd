// Converts the value tree of a torch pickle to tensors: shapes, storages,
// names.

#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"
#include "pickle/pickle_vm.h"

namespace haulway::torch {

// A storage, or part of one, as a persistent id names it.
struct StorageUse {
  uint32_t row;             // Row in index->storages.
  DType dtype;              // Dtype of its elements.
  uint64_t first_byte = 0;  // Where the named part begins,
  uint64_t nbytes = 0;      // and its size.
};

// Returns the storage of a persistent id; adds it if it is new.
using StorageResolver =
    std::function<Result<StorageUse>(const Value& persistent_id)>;

// Returns the part of a tensor's name that a key of a dict becomes. Different
// keys may become the same part, unless `escaped`.
std::string NamePart(const Value& key, bool escaped);

// Walks the tree at index->root: resolves every persistent id to a storage and
// every dense, quantized or meta tensor to a row of index->tensors, checks
// shapes and strides against the storages (rules M01 to M03), and names every
// tensor by its path. Sets Object::tensor. Names are allocated in `arena`.
// Fails with kCorrupt, or with kLimit for too many tensors or dimensions, or if
// it needs more memory than `most` and an allowance.
//
// A DTensor or a ShardedTensor becomes the row that its process holds, with a
// sharding, and its mesh gets no names. `of_process`: the file must be
// understood so, and every call that makes a tensor gets Object::tensor.
Status ResolveTensors(const ParseLimits& limits, const TreeBudget& most,
                      const StorageResolver& resolve, TreeArena* arena,
                      CheckpointIndex* index, bool of_process = false);

}  // namespace haulway::torch
