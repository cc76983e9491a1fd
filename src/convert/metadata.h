// What a file says of itself that another one made of it says too.

#pragma once

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "haulway/convert.h"
#include "haulway/index.h"
#include "haulway/save.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::convert {

// Values go along as they are to a format that keeps them, and text to one that
// keeps text; what does not is added to `left_out`. Those in `set` take the
// place of old ones of their name. Requires: CheckMetadata(set, to).
void CopyMetadata(const CheckpointIndex& index, Format to,
                  std::span<const Fact> set, TensorsToWrite* all,
                  std::vector<LeftOut>* left_out);

// Fails with kUnsupported if the format has no room for one of these.
Status CheckMetadata(std::span<const Fact> set, Format to);

// Sets and drops keys as the edit says; what is set keeps its place.
void EditPairs(const FileEdit& edit,
               std::vector<std::pair<std::string, std::string>>* pairs);

// Whether `path` leads to the file that the source is of.
bool IsFile(const ByteSource& source, const std::string& path);

}  // namespace haulway::convert
