// Makes threads wait before they write to a piece of memory.
//
// The memory is write-protected. A SIGSEGV handler makes each thread that
// writes there wait until other memory has taken its place. This needs no
// privileges, no other process and no cooperation, but it has two limits: a
// system call that writes there fails with EFAULT, and a thread that blocks
// SIGSEGV and writes there ends the process. Neither loses a write silently.

#pragma once

#include <cstddef>
#include <mutex>
#include <span>

#include "haulway/status.h"

namespace haulway {

// During its lifetime, a WriteHold makes threads that write to `memory` wait.
// Requires: `memory` consists of whole, readable and writable pages; at the end
// of the lifetime the address range is writable, because other memory was
// mapped there or Release() was called. A second WriteHold waits for the end of
// the first.
class WriteHold {
 public:
  explicit WriteHold(std::span<std::byte> memory);
  WriteHold(const WriteHold&) = delete;
  WriteHold& operator=(const WriteHold&) = delete;
  ~WriteHold();

  // Fails if the memory could not be protected; then no thread waits.
  const Status& status() const { return status_; }

  // Makes the memory writable again. Call if nothing took its place.
  void Release();

 private:
  const std::lock_guard<std::mutex> turn_;
  const std::span<std::byte> memory_;
  Status status_;
};

}  // namespace haulway
