// Finds the folders of versions.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway {

struct VersionFolder {
  std::string path;  // Without a slash at the end.
  bool has_index = false;
};

// Returns the folders below `uri` that have the index of a version, or the name
// of one and a shard. Fails as ListVersions() does.
Result<std::vector<VersionFolder>> FindVersionFolders(
    std::string_view uri, const RemoteOptions& remote);

}  // namespace haulway
