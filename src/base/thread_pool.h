// Running independent pieces of work on several threads.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "haulway/status.h"

namespace haulway {

// Calls work(i) once for each i in [0, count), on up to `threads` threads, the
// caller's among them; blocks until all are done. Indexes are handed out in
// order. After a failure no further index is started; returns the failure
// with the lowest index of those that ran. Requires: threads > 0.
Status ParallelFor(uint64_t count, int threads,
                   const std::function<Status(uint64_t index)>& work);

}  // namespace haulway
