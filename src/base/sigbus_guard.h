// Reading mapped files that others may cut meanwhile.
//
// Touching a page of a mapping that the file no longer has raises SIGBUS,
// which ends the process. Under guard the page is replaced by zeros instead,
// the mapping counts as cut from then on, and what was being done fails.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include "haulway/status.h"

namespace haulway {

// A GuardedMapping makes a mapping of a file known to the guard while it
// lives, if there is room for it. Requires: `bytes` is a private, writable
// mapping of `fd` from its start, and both are there for as long.
class GuardedMapping {
 public:
  GuardedMapping(std::span<const std::byte> bytes, int fd);
  GuardedMapping(const GuardedMapping&) = delete;
  GuardedMapping& operator=(const GuardedMapping&) = delete;
  ~GuardedMapping();

  // Whether pages of it were lost; what it shows is not the file any more.
  bool cut() const;

 private:
  size_t slot_;
};

// Replaces the process's handler of SIGBUS, once; what the guard does not know
// goes to the one before.
void CatchSigbus();

// A GuardedSection guards the thread that makes it, until it is gone. They
// may be nested.
class GuardedSection {
 public:
  GuardedSection();
  GuardedSection(const GuardedSection&) = delete;
  GuardedSection& operator=(const GuardedSection&) = delete;
  ~GuardedSection();

  // kTruncated if a page was missing, with its offset in the file; then
  // nothing that was read in this section counts.
  Status Check() const;

  // For the handler.
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
