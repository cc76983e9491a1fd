#include "net/fork_mutex.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <new>
#include <shared_mutex>
#include <utility>

namespace haulway::net {

namespace {

// Keeps this library loaded: fork(2) calls its code.
void StayLoaded() {
  Dl_info self;
  if (::dladdr(reinterpret_cast<void*>(&StayLoaded), &self) != 0) {
    (void)::dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

// What all who hold a ForkMutex share, and fork(2) has alone. Threads that come
// after the fork wait in the turnstile: otherwise it might wait forever.
struct Gate {
  std::mutex turnstile;
  std::shared_mutex inside;

  void Close() {
    turnstile.lock();
    inside.lock();
  }
  void Open() {
    inside.unlock();
    turnstile.unlock();
  }
};

// Returns the gate, which is never destroyed: threads may outlive main().
Gate& TheGate() {
  static auto* const gate = [] {
    auto* made = new Gate();
    StayLoaded();
    ::pthread_atfork([] { TheGate().Close(); }, [] { TheGate().Open(); },
                     [] { new (&TheGate()) Gate(); });
    return made;
  }();
  return *gate;
}

// The gate is made while the library is loaded. If a thread made it at its
// first use, a child that is forked meanwhile would wait forever for that
// thread.
[[maybe_unused]] const Gate& made_when_loaded = TheGate();

// How many a thread holds: only the first one passes the gate.
thread_local int held = 0;

}  // namespace

void ForkMutex::lock() {
  if (held++ == 0) {
    const std::lock_guard pass(TheGate().turnstile);
    TheGate().inside.lock_shared();
  }
  mutex_.lock();
}

void ForkMutex::unlock() {
  mutex_.unlock();
  if (--held == 0) TheGate().inside.unlock_shared();
}

LongForkMutex::LongForkMutex() : process_(::getpid()) {}

LongForkMutex::Hold LongForkMutex::Lock() {
  std::shared_ptr<std::mutex> mutex;
  {
    const std::lock_guard lock(changes_);
    if (process_ != ::getpid()) {
      mutex_ = std::make_shared<std::mutex>();
      process_ = ::getpid();
    }
    mutex = mutex_;
  }
  return Hold(std::move(mutex));
}

}  // namespace haulway::net
