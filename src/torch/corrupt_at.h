// The error of a checkpoint whose bytes contradict the format.

#pragma once

#include <cstdint>
#include <string_view>

#include "haulway/status.h"

namespace haulway::torch {

// `byte`: offset of the fault in the part that the caller names.
inline Status CorruptAt(std::string_view what, uint64_t byte) {
  return Status(Code::kCorrupt, what).At(byte);
}

}  // namespace haulway::torch
