// Overwrites a file in place, so that a failure leaves the old content.

#pragma once

#include <cstdint>

#include "haulway/status.h"

namespace haulway {

// Gives the file `to` the content of the file `from`, `size` bytes, and `from`
// the old content of `to`. Both are open for reading and writing.
//
// Blocks are exchanged from the end of the files to their start, so the space
// that the new content needs beyond the old is taken before an old byte is
// overwritten. If anything fails, all exchanged blocks are put back. If
// `durable`, `to` is synced. A process that dies meanwhile leaves a mixture.
// Fails as the system calls do.
Status ExchangeContent(int to, int from, uint64_t size, bool durable);

}  // namespace haulway
