// Sleeps on a word in shared memory until another process wakes the sleeper.

#pragma once

#include <atomic>
#include <cstdint>
#include <span>

namespace haulway::arena {

using Word = std::atomic<uint32_t>;
static_assert(Word::is_always_lock_free && sizeof(Word) == 4);

// Sleeps while *word is `expected`, until woken, until a signal arrives, or
// until `timeout_ns` have passed. Spurious returns are possible.
void FutexWait(const Word& word, uint32_t expected, uint64_t timeout_ns);
void FutexWakeAll(const Word& word);

struct WordWait {
  const Word* word;
  uint32_t expected;
};
// Does the same for several words, at most 128. If the kernel lacks the call
// (before Linux 5.16), returns after a millisecond.
void FutexWaitAny(std::span<const WordWait> waits, uint64_t timeout_ns);

// A Bell lets a process sleep until another has changed something.
//
// Both words are in shared memory and are only incremented and decremented; no
// process owns them. A process that dies while sleeping leaves `sleepers` too
// high, which only causes needless system calls.
struct alignas(64) Bell {
  Word rings;
  Word sleepers;

  // Wakes sleepers. Call after storing the change.
  //
  // Both sides modify `sleepers`, so the second one sees what the first stored
  // before. A plain load here could miss a sleeper that misses the change.
  void Ring() {
    if (sleepers.fetch_add(0, std::memory_order_acq_rel) != 0) RingAlways();
  }
  void RingAlways() {
    rings.fetch_add(1, std::memory_order_acq_rel);
    FutexWakeAll(rings);
  }
};

// A Spinner decides how long to poll before sleeping: longer if waits are
// short, hardly at all if waits are long or if polling takes the processor from
// the other process.
class Spinner {
 public:
  // Polls `ready` for a while. Returns whether it became true.
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
  // Records that a wait begun by Poll() had to sleep.
  void Slept() {
    if (budget_ns_ == kLongest) {
      // Polling failed: poll again after more waits than last time.
      backoff_ = backoff_ < kMostSkipped ? 2 * backoff_ + 1 : kMostSkipped;
      skipped_ = 0;
      budget_ns_ = kShortest;
    } else if (Now() - start_ns_ < kLongest && ++skipped_ > backoff_) {
      budget_ns_ = kLongest;
    }
  }

 private:
  // Putting a process to sleep and waking it costs both sides 5 to 15 us on
  // common machines, so polling for much longer cannot pay.
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

// Polls, then sleeps on `bell` until `ready()` or until about `timeout_ns` have
// passed. Returns ready(). The other side stores its change and then rings.
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
