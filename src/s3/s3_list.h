// What lies in a bucket.

#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway::s3 {

// Whether a name s3://BUCKET[/KEY] is that of all objects below it: it ends in
// '/', or has no key.
bool IsFolderName(std::string_view uri);

// The objects below such a name, as names that open them, sorted; with
// `recursive` those behind further slashes too. Keys that end in '/', which
// mark folders, are left out. Fails as requests do, with kCorrupt for an answer
// that is cut, leads in a circle or names what was not asked for, and with
// kLimit for more than a million keys.
Result<std::vector<std::string>> ListObjects(std::string_view uri,
                                             bool recursive,
                                             const S3Options& options,
                                             const RemoteOptions& remote);

}  // namespace haulway::s3
