// Whose fault a failure is, while a file is checked.

#pragma once

#include "haulway/status.h"

namespace haulway {

// Whether the source failed or the caller asked to stop, rather than what the
// source holds being wrong: no report may call it damage.
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
