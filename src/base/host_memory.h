// Memory for tensors.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

// The whole pages of `bytes`.
std::span<std::byte> WholePages(std::span<std::byte> bytes);

// Gives pages of anonymous memory back to the system; they read as zeros.
void GiveBack(std::span<std::byte> pages);

// A Buffer over `part` of memory that AllocateBuffer() made. When the last
// copy of it is gone its whole pages go back to the system, even while other
// parts of the same allocation live on. Requires: no other Buffer is used to
// reach those bytes afterwards.
Buffer ReclaimableSlice(const Buffer& memory, uint64_t offset, uint64_t length);

}  // namespace haulway
