// Lists the objects in a bucket.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/folder.h"
#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway::s3 {

// Returns whether a name s3://BUCKET[/KEY] stands for all objects below it: it
// ends in '/' or has no key.
bool IsFolderName(std::string_view uri);

// Lists the objects below such a name, as names that open them. With
// `recursive`, includes objects behind further slashes. Keys that end in '/',
// which mark folders, are skipped. A page takes one request or more. Fails as
// requests do, and with kCorrupt for a response that is truncated, cyclic, or
// lists keys that were not requested.
Result<std::unique_ptr<FolderPages>> OpenObjectPages(
    std::string_view uri, bool recursive, const S3Options& options,
    const RemoteOptions& remote);

// An object, by the name that opens it. 0 bytes if the store does not say.
struct ListedObject {
  std::string name;
  uint64_t bytes = 0;
};

// Returns all objects, sorted by name. Also fails with kLimit for more than a
// million keys.
Result<std::vector<ListedObject>> ListObjects(std::string_view uri,
                                              bool recursive,
                                              const S3Options& options,
                                              const RemoteOptions& remote);

}  // namespace haulway::s3
