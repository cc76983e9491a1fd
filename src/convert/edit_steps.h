// An edit in words.

#pragma once

#include <string>
#include <vector>

#include "haulway/checkpoint.h"
#include "haulway/convert.h"

namespace haulway::convert {

// A sentence without a full stop for each change, in the order of FileEdit; of
// casts one for each tensor that has a dtype of its own, and one for all
// others. Names and values are whole, in single quotes. Requires: the names of
// `edit` are those of `file`.
std::vector<std::string> StepsOf(const Checkpoint& file, const FileEdit& edit);

}  // namespace haulway::convert
