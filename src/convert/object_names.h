// Other names in a pickled object.

#pragma once

#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/convert.h"
#include "haulway/status.h"
#include "haulway/tree.h"

namespace haulway::convert {

// Tensors of an object, by their names.
struct NameEdits {
  std::vector<std::pair<std::string, std::string>> rename;
  std::vector<std::string> drop;
};

// The dicts of index.root that are to be others, by identity(): with other keys
// or without some. What they are made of lives in `*arena`. Fails with
// kUnsupported for a tensor that is in no dict, and for a new name that leads
// into another dict; with kInvalidArgument for a key that is there already.
Result<std::unordered_map<const void*, Value>> EditedDicts(
    const CheckpointIndex& index, const NameEdits& edits, TreeArena* arena);

// Repack() with other names; dropped tensors' storages are left out.
Result<Repacked> RepackWithNames(const Checkpoint& checkpoint,
                                 const RepackOptions& options,
                                 const NameEdits& edits);

}  // namespace haulway::convert
