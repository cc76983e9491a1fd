// What lies in a bucket.

#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/folder.h"
#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway::s3 {

// Whether a name s3://BUCKET[/KEY] is that of all objects below it: it ends in
// '/', or has no key.
bool IsFolderName(std::string_view uri);

// The objects below such a name, as names that open them; with `recursive`
// those behind further slashes too. Keys that end in '/', which mark folders,
// are left out. A page is a request or more. Fails as requests do, and with
// kCorrupt for an answer that is cut, leads in a circle or names what was not
// asked for.
Result<std::unique_ptr<FolderPages>> OpenObjectPages(
    std::string_view uri, bool recursive, const S3Options& options,
    const RemoteOptions& remote);

// All of them, sorted. Fails with kLimit for more than a million, too.
Result<std::vector<std::string>> ListObjects(std::string_view uri,
                                             bool recursive,
                                             const S3Options& options,
                                             const RemoteOptions& remote);

}  // namespace haulway::s3
