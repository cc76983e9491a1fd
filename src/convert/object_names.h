// Renames and drops tensors in a pickled object.

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

// Renames and drops, by the names of tensors.
struct NameEdits {
  std::vector<std::pair<std::string, std::string>> rename;
  std::vector<std::string> drop;
};

// Returns the replaced dicts of index.root, keyed by identity(): with other
// keys or without some. They are allocated in `*arena`. Fails with kUnsupported
// for a tensor that is not in a dict, and for a new name that leads into
// another dict; with kInvalidArgument for a key that exists already.
Result<std::unordered_map<const void*, Value>> EditedDicts(
    const CheckpointIndex& index, const NameEdits& edits, TreeArena* arena);

// Calls Repack() with other names. Omits the storages of dropped tensors.
Result<Repacked> RepackWithNames(const Checkpoint& checkpoint,
                                 const RepackOptions& options,
                                 const NameEdits& edits);

}  // namespace haulway::convert
