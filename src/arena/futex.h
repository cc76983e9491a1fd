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

// A Spinner decides how long to poll before sleeping: for a while where waits
// are short, hardly where they are long, or where polling keeps the processor
// from the one who is waited for.
class Spinner {
 public:
  // Polls `ready` for a while; whether it became true.
  template <class Ready>
  bool Poll(const Ready& ready) {
    start_ns_ = Now();
    do {
      if (ready()) {
        backoff_ /= 2;
        return true;
      }
      Pause();
    } while (Now() - start_ns_ < budget_ns_);
    return ready();
  }
  // Learns from a wait that Poll() began and that went on asleep.
  void Slept() {
    if (budget_ns_ == kLongest) {
      // In vain: the next attempt comes later than the one before.
      backoff_ = backoff_ < kMostSkipped ? 2 * backoff_ + 1 : kMostSkipped;
      skipped_ = 0;
      budget_ns_ = kShortest;
    } else if (Now() - start_ns_ < kLongest && ++skipped_ > backoff_) {
      budget_ns_ = kLongest;
    }
  }

 private:
  // To put a process to sleep and to wake it takes 5 to 15 us of both sides on
  // common machines: polling for much longer cannot pay.
  static constexpr uint64_t kLongest = 40'000;
  static constexpr uint64_t kShortest = 1'000;
  static constexpr uint32_t kMostSkipped = 255;

  static uint64_t Now();
  static void Pause();

  uint64_t budget_ns_ = kLongest;
  uint64_t start_ns_ = 0;
  uint32_t backoff_ = 0;  // Short waits to sleep through before polling again.
  uint32_t skipped_ = 0;
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
