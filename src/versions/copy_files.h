// Copies files of versions to local folders.

#pragma once

#include <cstdint>
#include <string>

#include "haulway/open.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// Copies an open file to another, without passing the bytes through this
// process if the file system can. `bytes`: its size.
Status CopyFile(int to, int from, uint64_t bytes);

// Copies the file `uri`, a path or a URL, to a new file. A link is followed.
// Returns the number of bytes. Fails as the source and the system do.
Result<uint64_t> CopyTo(const std::string& path, const std::string& uri,
                        const SourceOptions& options, Durability durability);

}  // namespace haulway
