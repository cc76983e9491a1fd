// Protects this process's mappings of a file that is about to be overwritten.

#pragma once

#include <sys/stat.h>

#include <string>

#include "haulway/status.h"

namespace haulway {

// Replaces this process's private mappings of a file with copies, so that
// overwriting or truncating the file does not change data loaded from it.
// `path` is for messages. Threads that write to these mappings wait meanwhile
// (write_hold.h). Fails with kUnsupported for a shared mapping, which would
// change with the file, and with kLimit if there is no memory for the copies.
Status DetachMappings(const struct stat& file, const std::string& path);

// Returns whether this process has mapped the file, privately or shared.
bool HasMappings(const struct stat& file);

}  // namespace haulway
