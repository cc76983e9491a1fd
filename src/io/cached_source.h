// Caches remote sources in a folder.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct CacheOptions {
  std::string folder;  // Created for the owner only if missing.
  // Limit for the sum of all files in the folder.
  uint64_t most_bytes = 0;
};

// Returns a source that caches what is read from `source` in the folder, under
// `key` and the version in source->remote_stats(), for all processes. If the
// version is missing or weak, if the object is larger than 1 TiB, or if the
// source has the bytes in memory, `source` itself is not cached, but its
// neighbours may be. Returns `source` if it is not a server.
//
// Processes may be killed, and files in the folder may be removed, at any time:
// cached bytes are used only if their checksum is right. A full disk ends
// caching, not reading. Fails if the folder cannot be created or used.
Result<std::shared_ptr<const ByteSource>> MakeCachedSource(
    std::shared_ptr<const ByteSource> source, std::string key,
    const CacheOptions& options);

}  // namespace haulway
