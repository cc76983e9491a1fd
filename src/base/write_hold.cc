// The handler is installed with the first hold and stays: a thread may have
// been refused a write while the memory was held and reach the handler after
// that. It cannot tell this from a mistake of the program, so it repeats each
// refused access once for each hold; what is refused again is not ours. Then
// the handler that was there before takes over, and the access is repeated.

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

// A handler reaches only what is global.
std::atomic<uintptr_t> held_begin{0};
std::atomic<uintptr_t> held_end{0};  // 0 while nothing is held.
std::atomic<uint32_t> holds{0};      // Counts; for futex(2), too.
struct sigaction earlier;            // Written before the handler is installed.
std::atomic<bool> passed_on{false};  // To `earlier`, since it was written.

// The access that this thread repeated last. The handler may not allocate, as
// a first access otherwise might.
struct Repeated {
  uintptr_t address;
  uint32_t hold;
};
[[gnu::tls_model("initial-exec")]] thread_local Repeated repeated{};

bool IsHeld(uintptr_t address) {
  return address >= held_begin.load() && address < held_end.load();
}

void PassOn(int signal, const siginfo_t& info) {
  struct sigaction next {};
  next.sa_handler = SIG_DFL;
  // An earlier handler may put this one back instead of coming to an end.
  if (!passed_on.exchange(true)) next = earlier;
  ::sigaction(signal, &next, nullptr);
  // An access is repeated on return; what somebody sent is sent again.
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
    // A little at a time, so that no wake-up is waited for in vain.
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
  ::sigfillset(&action.sa_mask);  // Their handlers might write there, too.
  if (::sigaction(SIGSEGV, &action, nullptr) != 0) {
    return Status::FromErrno(errno, "no handler of SIGSEGV can be set");
  }
  return Status();
}

}  // namespace

WriteHold::WriteHold(std::span<std::byte> memory) : memory_(memory) {
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
