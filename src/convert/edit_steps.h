// Describes an edit in words.

#pragma once

#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/convert.h"

namespace haulway::convert {

// Returns one sentence without a full stop per change, in the order of
// FileEdit. Casts have one sentence per tensor with an explicit dtype, and one
// for all others. Names and values are unabridged, in single quotes. Requires:
// the names in `edit` are those of `file`.
std::vector<std::string> StepsOf(const Checkpoint& file, const FileEdit& edit);

}  // namespace haulway::convert
