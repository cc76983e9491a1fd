// Removes objects, and uploads that did not end.

#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "haulway/open.h"
#include "haulway/status.h"

namespace haulway::s3 {

// Removes objects, over several connections. One that is not there is none.
// Fails with kInvalidArgument for a name that is not s3://BUCKET/KEY, with
// kAuth if there are no credentials, and as HTTP requests do; then any of them
// may be left.
Status RemoveObjects(std::span<const std::string> uris,
                     const S3Options& options, const RemoteOptions& remote);

// Aborts uploads as AbortS3Uploads() does, of those keys for which `wanted` is
// true.
Result<uint64_t> AbortUploads(
    std::string_view uri, const S3Options& options, const RemoteOptions& remote,
    const std::function<bool(std::string_view key)>& wanted);

}  // namespace haulway::s3
