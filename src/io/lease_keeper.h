// Read leases on files: notification before another process changes a file.
//
// While a process holds a read lease (fcntl(2), F_SETLEASE), the kernel blocks
// a process that opens the file for writing or truncates it until the lease is
// released, for at most /proc/sys/fs/lease-break-time seconds. One thread
// handles all leases. It waits with sigtimedwait(2) for a signal that is sent
// to it alone; signal handlers of the process are not touched. The thread is
// started with the first lease and ended before the process forks.

#pragma once

#include <cstdint>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway {

// A Leased is data that depends on a file staying unchanged.
class Leased {
 public:
  virtual ~Leased() = default;
  // Makes the data independent of the file, which does not change during the
  // call. Called at most once, on the keeper's thread, which blocks all
  // signals: when the file is about to be changed, or before the process forks,
  // since a child would have no lease. `fd` is the file, or -1 if other code
  // closed it.
  virtual void BecomeIndependent(int fd) = 0;
  // Makes every access to the data end the program. Called after
  // BecomeIndependent() if the kernel did not wait for its end and the file was
  // changed.
  virtual void BecomeUnusable() = 0;
};

// Takes a read lease on the file of `fd` until `leased` no longer depends on
// `bytes` of it. Requires: `fd` is open for reading only and has its own open
// file description. Fails with kUnsupported and the reason if there are no
// leases, if this process may not lease this file, if a process has the file
// open for writing, or if copying all leased data would take longer than
// the kernel waits.
Status KeepLease(UniqueFd fd, uint64_t bytes, Leased* leased);

// Releases the lease if it is still held. Waits for a running
// BecomeIndependent(). Does nothing if there is no lease.
void DropLease(Leased* leased);

}  // namespace haulway
