#include "arena/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <vector>

namespace haulway::arena {

namespace {

constexpr uint64_t kSecond = 1'000'000'000;

// Calls futex(2), without FUTEX_PRIVATE_FLAG: the word is shared between
// processes.
long Futex(const Word& word, int operation, uint32_t value,
           const timespec* timeout) {
  return ::syscall(SYS_futex, &word, operation, value, timeout, nullptr, 0);
}

}  // namespace

void FutexWait(const Word& word, uint32_t expected, uint64_t timeout_ns) {
  const timespec timeout = {static_cast<time_t>(timeout_ns / kSecond),
                            static_cast<long>(timeout_ns % kSecond)};
  (void)Futex(word, FUTEX_WAIT, expected, &timeout);
}

void FutexWakeAll(const Word& word) {
  (void)Futex(word, FUTEX_WAKE, INT_MAX, nullptr);
}

void FutexWaitAny(std::span<const WordWait> waits, uint64_t timeout_ns) {
  // futex2(2): struct futex_waitv, and FUTEX2_SIZE_U32.
  struct Waiter {
    uint64_t value;
    uint64_t address;
    uint32_t flags;
    uint32_t reserved;
  };
  constexpr uint32_t kSize32 = 2;
  constexpr long kFutexWaitV = 449;
  std::vector<Waiter> waiters;
  for (const WordWait& wait : waits) {
    waiters.push_back(
        {wait.expected, reinterpret_cast<uintptr_t>(wait.word), kSize32, 0});
  }
  timespec until;
  (void)::clock_gettime(CLOCK_MONOTONIC, &until);
  const uint64_t end = static_cast<uint64_t>(until.tv_nsec) + timeout_ns;
  until.tv_sec += static_cast<time_t>(end / kSecond);
  until.tv_nsec = static_cast<long>(end % kSecond);
  if (::syscall(kFutexWaitV, waiters.data(), waiters.size(), 0, &until,
                CLOCK_MONOTONIC) < 0 &&
      errno != EAGAIN && errno != ETIMEDOUT && errno != EINTR) {
    constexpr timespec kMillisecond = {0, 1'000'000};
    (void)::nanosleep(&kMillisecond, nullptr);
  }
}

uint64_t Spinner::Now() {
  timespec now;
  (void)::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * kSecond +
         static_cast<uint64_t>(now.tv_nsec);
}

void Spinner::Pause() {
  // Not sched_yield(): when other processes need the processor, it gives up
  // this process's turn, and a woken sleeper gets its turn sooner.
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace haulway::arena
