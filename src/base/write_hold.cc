// Design: the handler is installed with the first hold and stays installed,
// because a thread may have been refused a write during a hold and reach the
// handler after the hold. The handler cannot tell this from a fault of the
// program. So it repeats each refused access once per hold; an access that is
// refused again is a fault of the program. Then the previous handler is
// restored, and the access is repeated.

#include "base/write_hold.h"

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace haulway {

namespace {

// A handler can reach only global variables.
std::atomic<uintptr_t> held_begin{0};
std::atomic<uintptr_t> held_end{0};  // 0 while nothing is held.
// Counts holds and releases; futex(2) waits on it.
std::atomic<uint32_t> holds{0};
struct sigaction earlier;  // Written before the handler is installed.
// Whether `earlier` was restored since it was written.
std::atomic<bool> passed_on{false};

// The access that this thread repeated last. initial-exec: the handler may not
// allocate, which a first access might do otherwise.
struct Repeated {
  uintptr_t address;
  uint32_t hold;
};
[[gnu::tls_model("initial-exec")]] thread_local Repeated repeated{};

// Locked by the WriteHold that there is.
std::mutex one_at_a_time;

bool IsHeld(uintptr_t address) {
  return address >= held_begin.load() && address < held_end.load();
}

void PassOn(int signal, const siginfo_t& info) {
  struct sigaction next {};
  next.sa_handler = SIG_DFL;
  // An earlier handler may reinstall this one instead of ending the process.
  if (!passed_on.exchange(true)) next = earlier;
  ::sigaction(signal, &next, nullptr);
  // A faulting access is repeated on return; a signal that was sent is raised
  // again.
  if (info.si_code <= 0) ::raise(signal);
}

void OnRefusedAccess(int signal, siginfo_t* info, void* /*context*/) {
  const int error = errno;
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  const uint32_t hold = holds.load();
  const bool known = repeated.address == address && repeated.hold == hold;
  if (info->si_code != SEGV_ACCERR) {
    PassOn(signal, *info);
  } else if (IsHeld(address)) {
    // Wait a short time only, in case the wake-up is missed.
    const timespec while_held{0, 1'000'000};
    ::syscall(SYS_futex, &holds, FUTEX_WAIT_PRIVATE, hold, &while_held, nullptr,
              0);
  } else if (known) {
    PassOn(signal, *info);
  } else {
    repeated = {address, hold};
  }
  errno = error;
}

Status Install() {
  struct sigaction current {};
  if (::sigaction(SIGSEGV, nullptr, &current) != 0) {
    return Status::FromErrno(errno, "no handler of SIGSEGV can be set");
  }
  if ((current.sa_flags & SA_SIGINFO) != 0 &&
      current.sa_sigaction == OnRefusedAccess) {
    return Status();
  }
  earlier = current;
  passed_on = false;
  struct sigaction action {};
  action.sa_sigaction = OnRefusedAccess;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESTART;
  // Other handlers might write to the memory, too.
  ::sigfillset(&action.sa_mask);
  if (::sigaction(SIGSEGV, &action, nullptr) != 0) {
    return Status::FromErrno(errno, "no handler of SIGSEGV can be set");
  }
  return Status();
}

}  // namespace

WriteHold::WriteHold(std::span<std::byte> memory)
    : turn_(one_at_a_time), memory_(memory) {
  status_ = Install();
  if (!status_.ok()) return;
  ++holds;
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  held_begin = begin;
  held_end = begin + memory.size();
  if (::mprotect(memory.data(), memory.size(), PROT_READ) != 0) {
    status_ = Status::FromErrno(errno, "memory cannot be protected");
  }
}

void WriteHold::Release() {
  ::mprotect(memory_.data(), memory_.size(), PROT_READ | PROT_WRITE);
}

WriteHold::~WriteHold() {
  held_end = 0;
  ++holds;
  ::syscall(SYS_futex, &holds, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr,
            0);
}

}  // namespace haulway
