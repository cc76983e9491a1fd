// What was read of remote sources, kept in a folder.

#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct CacheOptions {
  std::string folder;  // Is made, for its owner only, if it is not there.
  // Limit for the sum of all files in the folder.
  uint64_t most_bytes = 0;
};

// `source`, of which each byte is asked for only once, by whichever process:
// what was read is kept in the folder, as what `key` names, in the version that
// source->remote_stats() tells. Where it tells none, or a weak one, or the
// bytes are in memory as they are, they are not kept; what lies beside them is.
// `source` itself where that is no server.
//
// Processes may be killed, and files of the folder removed, at any moment: what
// is kept is used only as far as it has its checksum. A full disk ends the
// keeping, not the reading. Fails as the system does where there can be no such
// folder.
Result<std::shared_ptr<const ByteSource>> MakeCachedSource(
    std::shared_ptr<const ByteSource> source, std::string key,
    const CacheOptions& options);

}  // namespace haulway
