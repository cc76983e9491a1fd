// Mutexes that a forked child can lock, whatever the threads of its parent held
// at the fork.

#pragma once

#include <sys/types.h>

#include <memory>
#include <mutex>
#include <utility>

namespace haulway::net {

// A ForkMutex is for short sections, which wait for nothing: fork(2) waits
// until no ForkMutex of the process is held. So in the child all of them are
// free, and what they protect is whole.
class ForkMutex {
 public:
  void lock();
  void unlock();

 private:
  std::mutex mutex_;
};

// A LongForkMutex is for sections that may take long: a forked child gets a new
// one. What it protects may be half changed there.
class LongForkMutex {
 public:
  LongForkMutex();

  class Hold {
   public:
    explicit Hold(std::shared_ptr<std::mutex> mutex)
        : mutex_(std::move(mutex)), lock_(*mutex_) {}

   private:
    std::shared_ptr<std::mutex> mutex_;
    std::unique_lock<std::mutex> lock_;
  };
  // Locks until the result is destroyed.
  [[nodiscard]] Hold Lock();

 private:
  ForkMutex changes_;
  std::shared_ptr<std::mutex> mutex_ = std::make_shared<std::mutex>();
  pid_t process_;
};

}  // namespace haulway::net
