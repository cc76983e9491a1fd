// Memory for tensors.

#pragma once

#include <cstdint>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

// A Buffer over `part` of memory that AllocateBuffer() made. When the last
// copy of it is gone its whole pages go back to the system, even while other
// parts of the same allocation live on. Requires: no other Buffer is used to
// reach those bytes afterwards.
Buffer ReclaimableSlice(const Buffer& memory, uint64_t offset, uint64_t length);

}  // namespace haulway
