// A file that is digested while it is written.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "base/sha256.h"
#include "haulway/sink.h"

namespace haulway {

// Makes a sink that passes everything on to `sink`, in order, and computes the
// digest of the bytes meanwhile. Calls `done` when the file is committed.
std::unique_ptr<ByteSink> MakeDigestedSink(
    std::unique_ptr<ByteSink> sink,
    std::function<void(uint64_t bytes, const Sha256Value& sha256)> done);

}  // namespace haulway
