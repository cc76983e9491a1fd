// Making threads wait that are about to write to a piece of memory.
//
// The memory is write-protected, and a handler of SIGSEGV makes whoever writes
// to it wait until something else has taken its place. This needs no rights,
// no other process and nobody's cooperation, but it has two limits: a system
// call that writes there fails with EFAULT, and a thread that blocks SIGSEGV
// and writes there ends the process. Neither loses a write in silence. Where
// threads can be stopped (thread_stop.h), that is better.

#pragma once

#include <cstddef>
#include <span>

#include "haulway/status.h"

namespace haulway {

// A WriteHold makes threads wait that write to `memory`, from its making on
// until it is gone. Requires: `memory` is of whole pages, mapped for reading
// and writing; what lies there at the end may be written to, so either
// something else was put there or Release() was called; at most one WriteHold
// at a time.
class WriteHold {
 public:
  explicit WriteHold(std::span<std::byte> memory);
  WriteHold(const WriteHold&) = delete;
  WriteHold& operator=(const WriteHold&) = delete;
  ~WriteHold();

  // Fails where the memory could not be protected; then nobody waits.
  const Status& status() const { return status_; }

  // Makes the memory writable again, for where nothing took its place.
  void Release();

 private:
  const std::span<std::byte> memory_;
  Status status_;
};

}  // namespace haulway
