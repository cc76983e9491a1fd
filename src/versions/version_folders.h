// Finds the folders of versions, and describes versions.

#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/delta.h"
#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway {

struct VersionFolder {
  std::string path;  // Without a slash at the end.
  bool has_index = false;
};

// Returns the folders below `uri` that have the index of a version, or the name
// of one and a shard. Sets `has_latest` to whether there is a file of that
// name. Fails as ListVersions() does.
Result<std::vector<VersionFolder>> FindVersionFolders(
    std::string_view uri, const RemoteOptions& remote,
    bool* has_latest = nullptr);

// Returns whether the entry is a link to a version beside it, which would come
// twice.
bool IsLinkWithin(const std::filesystem::directory_entry& entry);

// Reads the index of a version and the headers of its shards. `version` has no
// id if the folder is not of a version. Fails if the index cannot be read;
// other faults are missing files of the version.
Status DescribeVersion(const VersionFolder& folder,
                       const SourceOptions& options, WeightVersion* version);

// Fails with kMismatch if both are whole and the same version: nobody can tell
// which one others mean.
Status CheckHeldOnce(const WeightVersion& one, const WeightVersion& other);

}  // namespace haulway
