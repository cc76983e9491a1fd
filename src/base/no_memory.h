// Turns exceptions, and access to a truncated mapped file, into a Status.

#pragma once

#include <exception>
#include <new>
#include <stdexcept>
#include <string>

#include "base/sigbus_guard.h"
#include "base/text.h"
#include "haulway/status.h"

namespace haulway {

// Runs `work`, which returns a Status or a Result. Fails with kLimit if the
// standard library cannot allocate memory, with kTruncated if a mapped file
// lost bytes that `work` read, and with kInvalidArgument for any other
// exception: only functions of the caller throw such. Public functions that
// read sources, and those that call functions of the caller, run inside
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
  } catch (const std::exception& thrown) {
    return Status(Code::kInvalidArgument,
                  "a function of the caller threw " + Quote(thrown.what()));
  }
}

}  // namespace haulway
