// Tensorizer files and plain values in Redis, as sources and sinks.
//
// A Tensorizer file is stored under a prefix, as by Tensorizer's own
// to_redis(): one key for the bytes before the first tensor and, for each
// tensor, one key for its header and one or more keys for its data. Each key is
// named after its offset in the file. docs/redis.md specifies the layout.

#pragma once

#include <memory>
#include <string_view>

#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "redis/redis_target.h"

namespace haulway::redis {

// Returns whether `uri`, of a scheme of Redis, names a prefix, which can hold
// only a Tensorizer file, rather than a plain value or something else.
bool IsPrefix(std::string_view uri);

// Opens the source that `uri` names. Computes all keys from the header, without
// searching, and checks the lengths of their values. Reads fail with kCorrupt
// once any client has replaced what was opened. Fails with kNotFound,
// kInvalidArgument, and as connections do: kUnavailable, kTimeout,
// kPermissionDenied, kUnsupported, kIoError.
Result<std::shared_ptr<const ByteSource>> OpenSource(
    std::string_view uri, std::string_view server,
    const ConnectOptions& connect = {});

// Opens a sink for `uri`, which is written in order. Values have temporary
// names until Commit(), which renames them and replaces the existing ones.
// Refuses an existing prefix, unless `options.existing` says otherwise. If
// Begin() is not told the size of a plain value, the value is first written to
// an unnamed file.
Result<std::unique_ptr<ByteSink>> OpenSink(std::string_view uri,
                                           std::string_view server,
                                           const FileSinkOptions& options,
                                           const ConnectOptions& connect = {});

}  // namespace haulway::redis
