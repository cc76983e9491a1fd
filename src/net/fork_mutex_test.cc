#include "net/fork_mutex.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>
#include <vector>

namespace haulway::net {
namespace {

// Runs `work` in a forked child. Returns whether it ended within 10 s.
template <typename Work>
bool EndsInChild(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    work();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST(ForkMutex, IsFreeInAChild) {
  ForkMutex mutex, other;
  int one = 0, two = 0;
  std::atomic<bool> stop = false;
  std::atomic<int> begun = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      ++begun;
      while (!stop) {
        const std::lock_guard lock(mutex);
        ++one;
        const std::lock_guard more(other);
        ++two;
      }
    });
  }
  // AddressSanitizer holds locks of its own while a thread begins.
  while (begun < 4) std::this_thread::yield();
  for (int round = 0; round < 30; ++round) {
    EXPECT_TRUE(EndsInChild([&] {
      const std::lock_guard lock(mutex);
      const std::lock_guard more(other);
      if (one != two) ::_exit(1);
    }));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
}

TEST(LongForkMutex, IsNewInAChild) {
  LongForkMutex mutex;
  std::atomic<bool> held = false, stop = false;
  std::thread holder([&] {
    const auto hold = mutex.Lock();
    held = true;
    while (!stop) std::this_thread::yield();
  });
  while (!held) std::this_thread::yield();
  EXPECT_TRUE(EndsInChild([&] { (void)mutex.Lock(); }));
  stop = true;
  holder.join();
  (void)mutex.Lock();
}

}  // namespace
}  // namespace haulway::net
