// Memory for tensors.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/buffer.h"
#include "haulway/status.h"

namespace haulway {

// Returns the whole pages within `bytes`.
std::span<std::byte> WholePages(std::span<std::byte> bytes);

// Frees the pages of anonymous memory; they read as zeros afterwards.
void GiveBack(std::span<std::byte> pages);

// Returns a Buffer over a part of memory from AllocateBuffer(). When its last
// copy is destroyed, its whole pages are freed, even if other parts of the
// allocation are still in use. Requires: no other Buffer is used to access
// those bytes afterwards.
Buffer ReclaimableSlice(const Buffer& memory, uint64_t offset, uint64_t length);

}  // namespace haulway
