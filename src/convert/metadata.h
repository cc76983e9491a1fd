// Copies the metadata of a file to a file that is made from it.

#pragma once

#include <optional>
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

using Pairs = std::vector<std::pair<std::string, std::string>>;

// Copies values to a format that stores values, and texts to a format that
// stores texts; adds the rest to `left_out`. `set` replaces old values with the
// same names; in a format that stores values, a text replaces an old value as
// ValueLike() does. Calls NoteFramework() unless `index` is of a safetensors
// file. Requires: CheckMetadata(set, to).
Status CopyMetadata(const CheckpointIndex& index, Format to,
                    std::span<const Fact> set, TensorsToWrite* all,
                    std::vector<LeftOut>* left_out);

// Adds "format": "pt" to the metadata of a safetensors file that has no
// "format": transformers 4 reads no other file.
void NoteFramework(Format to, std::optional<Pairs>* metadata);

// Parses `text` as a value of the same kind as `old`.
Result<FactValue> ValueLike(const FactValue& old, std::string_view text);

// Fails with kUnsupported if the format cannot store one of these.
Status CheckMetadata(std::span<const Fact> set, Format to);

// Sets and drops keys as the edit says. A key that is set keeps its position.
void EditPairs(const FileEdit& edit, Pairs* pairs);

// Returns whether `path` is the file that `source` reads.
bool IsFile(const ByteSource& source, const std::string& path);

// Returns whether the checkpoint, or a part of it, is read from this local
// file.
bool IsFileOf(const Checkpoint& from, const std::string& path);

}  // namespace haulway::convert
