// Tells failures of a source apart from damage, while a file is checked.

#pragma once

#include "haulway/status.h"

namespace haulway {

// Returns whether `status` means that the source failed or the caller
// cancelled. Reports must not call that damage.
inline bool IsOfSource(const Status& status) {
  switch (status.code()) {
    case Code::kUnavailable:
    case Code::kTimeout:
    case Code::kIoError:
    case Code::kCancelled:
      return true;
    default:
      return status.os_error() != 0;
  }
}

}  // namespace haulway
