// Where an allocation that fails, or a mapped file that was cut, becomes a
// Status.

#pragma once

#include <new>
#include <stdexcept>

#include "base/sigbus_guard.h"
#include "haulway/status.h"

namespace haulway {

// Runs `work`, which returns a Status or a Result; kLimit if the system has no
// memory for what it asks of the standard library, kTruncated if a mapped file
// lost what was read of it. The public functions that read sources run inside
// it, so that the library throws nothing and raises no signal.
template <class Work>
auto OrNoMemory(const Work& work) -> decltype(work()) {
  try {
    const GuardedSection section;
    auto result = work();
    HAULWAY_TRY(section.Check());
    return result;
  } catch (const std::bad_alloc&) {
    return Status(Code::kLimit, "out of memory");
  } catch (const std::length_error&) {
    return Status(Code::kLimit, "out of memory");
  }
}

}  // namespace haulway
