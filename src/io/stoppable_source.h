// Ends what reads a source early.

#pragma once

#include <atomic>
#include <memory>

#include "haulway/source.h"

namespace haulway {

// The same bytes until `*stop` is set; from then on every read fails with
// kCancelled, and nothing is shown in place. Requires: `stop` outlives it.
std::shared_ptr<const ByteSource> MakeStoppableSource(
    std::shared_ptr<const ByteSource> source, const std::atomic<bool>* stop);

}  // namespace haulway
