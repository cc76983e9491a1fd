// Copies the metadata of a file to a file that is made from it.

#pragma once

#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "haulway/convert.h"
#include "haulway/index.h"
#include "haulway/save.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::convert {

// Copies values to a format that stores values, and texts to a format that
// stores texts; adds the rest to `left_out`. `set` replaces old values with the
// same names; in a format that stores values, a text replaces an old value as
// ValueLike() does. Requires: CheckMetadata(set, to).
Status CopyMetadata(const CheckpointIndex& index, Format to,
                    std::span<const Fact> set, TensorsToWrite* all,
                    std::vector<LeftOut>* left_out);

// Parses `text` as a value of the same kind as `old`.
Result<FactValue> ValueLike(const FactValue& old, std::string_view text);

// Fails with kUnsupported if the format cannot store one of these.
Status CheckMetadata(std::span<const Fact> set, Format to);

// Sets and drops keys as the edit says. A key that is set keeps its position.
void EditPairs(const FileEdit& edit,
               std::vector<std::pair<std::string, std::string>>* pairs);

// Returns whether `path` is the file that `source` reads.
bool IsFile(const ByteSource& source, const std::string& path);

// Returns whether the checkpoint, or a part of it, is read from this local
// file.
bool IsFileOf(const Checkpoint& from, const std::string& path);

}  // namespace haulway::convert
