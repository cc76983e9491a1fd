// Stops all other threads of this process for a moment.
//
// ptrace(2) stops a thread without a signal handler, both in user code and in
// system calls, but only from another process. So a helper process is started
// that shares this process's memory and descriptors, and the work is done in
// the helper. The stopped threads then continue where they were; system calls
// that never restart, such as epoll_wait(2), return EINTR, as when a debugger
// is attached.

#pragma once

#include <sys/types.h>

#include <chrono>

#include "haulway/status.h"

namespace haulway {

// Checks whether the threads of this process can be stopped. Fails with
// kUnsupported and the reason if a debugger traces the process or the system
// refuses ptrace(2). Tries by seizing `thread`, a thread of this process other
// than the caller, without stopping it. Takes about 100 us. Requires: the
// caller blocks all signals.
Status TryThreadStop(pid_t thread);

// Returns whether a debugger traces this process; then no other process can.
bool IsTraced();

// Returns the number of seccomp(2) filters of the calling thread. If filters
// were added after TryThreadStop(), a call that was possible then may now kill
// the process and should not be tried.
int CountCallFilters();

// Runs work(argument) while every other thread of this process is stopped.
// `work` runs in the helper. It may use memory and descriptors and make system
// calls, but must not allocate, lock or throw, since a stopped thread may hold
// any lock. "/proc/self" and getpid() refer to the helper. Fails without
// running `work`: with kUnsupported if the system refuses, and with kTimeout if
// a thread does not stop within `patience`, for example in a system call that
// waits for a device. Kernel threads (io_uring workers) are not stopped.
// Requires: the caller blocks all signals.
Status WhileOthersStopped(void (*work)(void* argument), void* argument,
                          std::chrono::milliseconds patience);

}  // namespace haulway
