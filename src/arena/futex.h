// Sleeping on a word in shared memory, and being woken by another process.

#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace haulway::arena {

using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4);

// Sleeps while *word is `expected`, until woken, a signal comes, or
// `timeout_ns` have passed. May return for no reason.
void FutexWait(const Word& word, uint32_t expected, uint64_t timeout_ns);
void FutexWakeAll(const Word& word);

struct WordWait {
  const Word* word;
  uint32_t expected;
};
// FutexWait() on several words, at most 128. Where the kernel cannot (before
// Linux 5.16), returns after a millisecond.
void FutexWaitAny(std::span<const WordWait> waits, uint64_t timeout_ns);

// A Bell lets one process sleep until another has changed something.
//
// Both words live in shared memory, are only ever counted up and down, and
// belong to nobody: a process that dies while it sleeps leaves `sleepers` too
// high, which costs needless system calls and nothing else.
struct alignas(64) Bell {
  Word rings;
  Word sleepers;

  // Called after the change was stored.
  //
  // Both sides change `sleepers`: whoever comes second sees what the other
  // stored before. A plain load here could miss a sleeper who misses the
  // change.
  void Ring() {
    if (sleepers.fetch_add(0, std::memory_order_acq_rel) != 0) RingAlways();
  }
  void RingAlways() {
    rings.fetch_add(1, std::memory_order_acq_rel);
    FutexWakeAll(rings);
  }
};

// A Spinner decides how long to poll before sleeping: for as long as it takes
// where waits are short, hardly where they are long.
class Spinner {
 public:
  // Polls `ready` for a while; whether it became true.
  template <class Ready>
  bool Poll(const Ready& ready) {
    start_ns_ = Now();
    int round = 0;
    do {
      if (ready()) return true;
      Pause(round++);
    } while (Now() - start_ns_ < budget_ns_);
    return ready();
  }
  // Learns from a wait that Poll() began and that went on asleep.
  void Slept() {
    const bool was_short = Now() - start_ns_ < kLongest;
    budget_ns_ = was_short ? kLongest : budget_ns_ / 2;
    if (budget_ns_ < kShortest) budget_ns_ = kShortest;
  }

 private:
  // To put a process to sleep and to wake it takes 5 to 15 us of both sides on
  // common machines: polling for much longer cannot pay.
  static constexpr uint64_t kLongest = 40'000;
  static constexpr uint64_t kShortest = 1'000;

  static uint64_t Now();
  static void Pause(int round);

  uint64_t budget_ns_ = kLongest;
  uint64_t start_ns_ = 0;
};

// Polls, then sleeps on `bell` until `ready()` or some `timeout_ns` have
// passed; returns ready(). The other side stores and then rings.
template <class Ready>
bool WaitOnBell(Bell& bell, Spinner& spinner, uint64_t timeout_ns,
                const Ready& ready) {
  if (ready() || spinner.Poll(ready)) return true;
  bell.sleepers.fetch_add(1, std::memory_order_acq_rel);
  const uint32_t seen = bell.rings.load(std::memory_order_acquire);
  if (!ready()) FutexWait(bell.rings, seen, timeout_ns);
  bell.sleepers.fetch_sub(1, std::memory_order_acq_rel);
  spinner.Slept();
  return ready();
}

}  // namespace haulway::arena
