// Turns a failed allocation, and access to a truncated mapped file, into a
// Status.

#pragma once

#include <new>
#include <stdexcept>

#include "base/sigbus_guard.h"
#include "haulway/status.h"

namespace haulway {

// Runs `work`, which returns a Status or a Result. Fails with kLimit if the
// standard library cannot allocate memory, and with kTruncated if a mapped file
// lost bytes that `work` read. Public functions that read sources run inside
// OrNoMemory(), so that the library throws nothing and raises no signal.
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
