// Calls into Python on threads of the engine, which Python may end meanwhile.

#pragma once

#include <cxxabi.h>
#include <unistd.h>

namespace haulway::python {

// Returns what `call` returns. Where Python ends the thread in it, as CPython
// before 3.14 does to whoever wants the GIL at its end, the thread stops here
// for ever: unwound further, C++ would end the process. Requires: `call` uses
// Python's C functions only, and leaves nothing to be destroyed.
template <class Call>
auto CallingPython(const Call& call) {
  try {
    return call();
  } catch (const abi::__forced_unwind&) {
    for (;;) pause();
  }
}

}  // namespace haulway::python
