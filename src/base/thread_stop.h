// Making all other threads of this process stand still for a moment.
//
// ptrace(2) stops a thread without any signal handler, in user code and in
// system calls alike, but only from another process. So a helper process is
// made for the moment, which shares this one's memory and descriptors, and
// what is to be done meanwhile is done there. Threads that were stopped go on
// where they were; system calls that never restart, such as epoll_wait(2),
// return EINTR to them, as when a debugger is attached.

#pragma once

#include <sys/types.h>

#include <chrono>

#include "haulway/status.h"

namespace haulway {

// Whether the threads of this process may be stopped; kUnsupported with the
// reason where not: a debugger traces it, or the system refuses ptrace(2).
// Found out by seizing `thread`, of this process and not the caller's, without
// stopping it. Takes some 100 us. Requires: the caller blocks all signals.
Status TryThreadStop(pid_t thread);

// Whether a debugger traces this process, so that nobody else can.
bool IsTraced();

// How many filters of system calls (seccomp(2)) the calling thread has. Whoever
// was given more since TryThreadStop() may be killed for a call that was
// possible then, and had better not try.
int CountCallFilters();

// Runs work(argument) while every other thread of this process stands still.
// It runs in the helper: it may use memory and descriptors and make system
// calls, but not allocate, take a lock or throw, since whoever stands still may
// hold any lock; "/proc/self" and getpid() mean the helper. Fails, and `work`
// was not run, with kUnsupported where that is refused, and kTimeout if a
// thread does not come to a stop within `patience`, for example in a system
// call that waits for a device. Threads of the kernel (io_uring's workers) are
// not stopped. Requires: the caller blocks all signals.
Status WhileOthersStopped(void (*work)(void* argument), void* argument,
                          std::chrono::milliseconds patience);

}  // namespace haulway
