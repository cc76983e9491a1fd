// Cancels the reads of a source.

#pragma once

#include <atomic>
#include <memory>

#include "haulway/source.h"

namespace haulway {

// Returns a source with the same bytes. After `*stop` is set, every read fails
// with kCancelled and there are no views. Requires: `stop` outlives the source.
std::shared_ptr<const ByteSource> MakeStoppableSource(
    std::shared_ptr<const ByteSource> source, const std::atomic<bool>* stop);

}  // namespace haulway
