// The two strategies of Write().

#pragma once

#include "haulway/layout.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// Divides the file into chunks of a request's length, which threads digest and
// write in any order. For kNone and kCrc32. Requires: `options` come from
// WithThreads(), and the sink has begun.
Result<WriteStats> WriteByChunks(const Layout& layout, ByteSink& sink,
                                 const SinkTraits& traits,
                                 const WriteOptions& options);

// Digests payloads from start to end, many at once, and writes them some way
// behind. The frames with their digests are written afterwards. For kInOrder.
Result<WriteStats> WriteByPayloads(const Layout& layout, ByteSink& sink,
                                   const SinkTraits& traits,
                                   const WriteOptions& options);

}  // namespace haulway
