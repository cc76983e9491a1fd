// Keeps a sink with threads or connections of its own in its process.

#pragma once

#include <memory>

#include "haulway/sink.h"

namespace haulway {

// Returns a sink that forwards to `sink`. A forked child, which has none of the
// sink's threads and shares its connections, can neither use nor end it: calls
// fail with kInvalidArgument, and destroying it leaves `sink` as it is.
std::unique_ptr<ByteSink> MakeProcessSink(std::unique_ptr<ByteSink> sink);

}  // namespace haulway
