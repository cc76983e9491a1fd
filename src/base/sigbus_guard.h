// Reads mapped files that other processes may truncate meanwhile.
//
// Access to a page that the file no longer has raises SIGBUS, which ends the
// process. In a guarded section the page is replaced by zeros, the mapping is
// marked as cut, and the operation fails.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/status.h"

namespace haulway {

// A GuardedMapping registers a mapping of a file with the guard during its
// lifetime, if a slot is free. Requires: `bytes` is a private, writable mapping
// of `fd` from offset 0; the mapping outlives the GuardedMapping, and `fd` is
// open until ForgetFile() or the end.
class GuardedMapping {
 public:
  GuardedMapping(std::span<const std::byte> bytes, int fd);
  GuardedMapping(const GuardedMapping&) = delete;
  GuardedMapping& operator=(const GuardedMapping&) = delete;
  ~GuardedMapping();

  // Returns whether pages were lost. The mapping then no longer shows the file.
  bool cut() const;

  // Lets the file be closed while the mapping stays. Pages that are lost from
  // here on are replaced one at a time.
  void ForgetFile();

 private:
  size_t slot_;
};

// Installs the guard's SIGBUS handler, once per process. Signals that the guard
// does not know go to the previous handler.
void CatchSigbus();

// A GuardedSection guards the thread that makes it, during its lifetime.
// Sections may be nested.
class GuardedSection {
 public:
  GuardedSection();
  GuardedSection(const GuardedSection&) = delete;
  GuardedSection& operator=(const GuardedSection&) = delete;
  ~GuardedSection();

  // Fails with kTruncated and the offset in the file if a page was missing. All
  // data read in this section is then invalid.
  Status Check() const;

  // Called by the signal handler.
  void Lose(uint64_t offset) {
    if (!lost_) offset_ = offset;
    lost_ = true;
  }

 private:
  GuardedSection* const outer_;
  volatile bool lost_ = false;
  volatile uint64_t offset_ = 0;
};

}  // namespace haulway
