// Runs independent pieces of work on several threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "haulway/status.h"

namespace haulway {

// Calls work(i) once for each i in [0, count), on up to `threads` threads
// including the caller's. Blocks until all calls have returned. Indices are
// handed out in ascending order. After a failure no further index is started;
// returns the failure with the lowest index. Requires: threads > 0.
Status ParallelFor(uint64_t count, int threads,
                   const std::function<Status(uint64_t index)>& work);

}  // namespace haulway
