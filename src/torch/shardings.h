// Reads what a pickle says of a DTensor or a ShardedTensor: which part of which
// tensor one process holds.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <unordered_map>

#include "haulway/index.h"
#include "haulway/options.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::torch {

// Returns whether a class, as an argument of _rebuild_from_type_v2(), is one of
// the two.
bool IsSharded(const Value& type);

class ShardingReader {
 public:
  // Returns the row of the tensor that `value` makes; fails if it makes none.
  using RowOf = std::function<Result<uint32_t>(const Value& value)>;

  // Requires: `limits` and `index` outlive the reader.
  ShardingReader(const ParseLimits& limits, CheckpointIndex* index)
      : limits_(limits), index_(*index) {}

  // Reads the arguments of _rebuild_wrapper_subclass(), and the state that the
  // result gets. A DTensor's part becomes `*local`, a row of tensors. Appends
  // to the meshes of the index. Fails with kCorrupt for what torch does not
  // write.
  Result<Sharding> Read(std::span<const Value> args, const Value& state,
                        const RowOf& row_of, uint64_t byte, uint32_t* local);

 private:
  Status ReadWhole(std::span<const Value> args, uint64_t byte,
                   Sharding* sharding) const;
  Status ReadDTensor(const Value& state, const RowOf& row_of, uint64_t byte,
                     Sharding* sharding, uint32_t* local);
  Status ReadShardedTensor(const Value& state, const RowOf& row_of,
                           uint64_t byte, Sharding* sharding) const;
  Result<uint32_t> ReadMesh(const Value& value, const RowOf& row_of,
                            uint64_t byte);

  const ParseLimits& limits_;
  CheckpointIndex& index_;
  std::unordered_map<const Object*, uint32_t> meshes_;
};

}  // namespace haulway::torch
