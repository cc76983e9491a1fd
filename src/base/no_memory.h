// Where an allocation that fails becomes a Status.

#pragma once

#include <new>
#include <stdexcept>

#include "haulway/status.h"

namespace haulway {

// Runs `work`, which returns a Status or a Result; kLimit if the system has no
// memory for what it asks of the standard library. The public functions that
// read sources run inside it, so that the library throws nothing.
template <class Work>
auto OrNoMemory(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return Status(Code::kLimit, "out of memory");
  } catch (const std::length_error&) {
    return Status(Code::kLimit, "out of memory");
  }
}

}  // namespace haulway
