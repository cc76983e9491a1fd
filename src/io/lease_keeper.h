// Read leases on files: being asked before anyone changes a file.
//
// While a process holds a read lease (fcntl(2), F_SETLEASE) the kernel holds
// whoever opens the file for writing, or truncates it, until the lease is let
// go, for at most /proc/sys/fs/lease-break-time seconds. One thread waits for
// that on behalf of all leases, by sigtimedwait(2) for a signal that is sent to
// it alone; no handler of the process is touched. The thread is started with
// the first lease, and ended before the process forks.

#pragma once

#include <chrono>
#include <cstdint>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway {

// A Leased is what depends on a file not being changed.
class Leased {
 public:
  virtual ~Leased() = default;
  // Makes it independent of the file, which does not change meanwhile. Called
  // once at most, on the keeper's thread, which blocks all signals: when the
  // file is about to be changed, or before the process forks, as a child would
  // have no lease. `fd` is the file, or -1 where somebody closed it. It may
  // wait for `patience` for threads to stop, beside the time that copying
  // takes; if they do not, it sets `patience` to 0, for those that follow.
  virtual void BecomeIndependent(int fd,
                                 std::chrono::milliseconds* patience) = 0;
  // Makes every access to it end the program. Called after the above where the
  // kernel did not wait for that and the file was changed.
  virtual void BecomeUnusable() = 0;
};

// Takes a read lease on the file that `fd` is open on, for reading only, for as
// long as `leased` depends on `bytes` of it. `fd` has an open file description
// of its own. Fails with kUnsupported and the reason where there are no leases,
// this process may have none of this file, somebody has the file open for
// writing, it would take longer to become independent of all that is leased
// than the kernel waits, or the process's threads cannot be stopped
// (thread_stop.h).
Status KeepLease(UniqueFd fd, uint64_t bytes, Leased* leased);

// Lets the lease go if it is still held; waits for a BecomeIndependent() that
// is under way. Nothing happens if there is no lease.
void DropLease(Leased* leased);

}  // namespace haulway
