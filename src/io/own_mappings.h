// What this process has mapped of a file that is about to be overwritten.

#pragma once

#include <sys/stat.h>

#include <string>

#include "haulway/status.h"

namespace haulway {

// Makes the private mappings of a file that this process has independent of
// it: a copy takes the place of each, so that overwriting or cutting the file
// changes none of what was loaded from it. `path` is for messages. Requires:
// no thread writes to these mappings meanwhile. Fails with kUnsupported for a
// shared mapping, which would change with the file, and kLimit where there is
// no memory for the copies.
Status DetachMappings(const struct stat& file, const std::string& path);

}  // namespace haulway
