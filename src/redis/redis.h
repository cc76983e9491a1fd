// Tensorizer files and plain values in Redis, as sources and sinks.
//
// A Tensorizer file lies under a prefix as its own to_redis() puts it there: a
// key for what stands before the first tensor, and for every tensor one of its
// header and one or several of its data, each named by where it stands in the
// file. docs/redis.md has it in full.

#pragma once

#include <memory>
#include <string_view>

#include "haulway/sink.h"
#include "haulway/source.h"
#include "haulway/status.h"
#include "redis/redis_target.h"

namespace haulway::redis {

// Whether `uri` names a prefix, under which only a Tensorizer file can lie, and
// not a plain value or something else.
bool IsPrefix(std::string_view uri);

// Opens what `uri` names. All keys are found by what the header says and their
// lengths are checked before this returns; no key is searched for. Reads fail
// with kCorrupt once anybody has replaced what was opened. Fails with
// kNotFound, kInvalidArgument, and as connections do: kUnavailable, kTimeout,
// kPermissionDenied, kUnsupported, kIoError.
Result<std::shared_ptr<const ByteSource>> OpenSource(
    std::string_view uri, std::string_view server,
    const ConnectOptions& connect = {});

// Writes there, in order: values have names of their own until Commit() gives
// them theirs, in place of what was there. Refuses a prefix that is there,
// unless `options.existing` says otherwise. A plain value whose size Begin()
// is not told goes to a file without a name first.
Result<std::unique_ptr<ByteSink>> OpenSink(std::string_view uri,
                                           std::string_view server,
                                           const FileSinkOptions& options,
                                           const ConnectOptions& connect = {});

}  // namespace haulway::redis
