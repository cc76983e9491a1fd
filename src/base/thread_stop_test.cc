#include "base/thread_stop.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

namespace haulway {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

// Callers must block all signals.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

TEST(CountCallFilters, CountsEachFilter) {
  constexpr int kCannotBeSet = 77;
  const pid_t child = ::fork();
  if (child == 0) {
    ::sock_filter allow{BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW};
    ::sock_fprog program{1, &allow};
    ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    const int before = CountCallFilters();
    for (int i = 1; i <= 3; ++i) {
      if (::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        ::_exit(kCannotBeSet);
      }
      if (CountCallFilters() != before + i) ::_exit(i);
    }
    ::_exit(0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (WIFEXITED(status) && WEXITSTATUS(status) == kCannotBeSet) {
    GTEST_SKIP() << "no filters can be set here";
  }
  EXPECT_EQ(status, 0);
}

class ThreadStop : public testing::Test {
 protected:
  void SetUp() override {
    std::atomic<bool> stop{false};
    std::atomic<pid_t> id{0};
    std::jthread other([&] {
      id = static_cast<pid_t>(::syscall(SYS_gettid));
      while (!stop) std::this_thread::yield();
    });
    while (id == 0) std::this_thread::yield();
    const SignalsBlocked blocked;
    const Status status = TryThreadStop(id);
    stop = true;
    if (!status.ok()) GTEST_SKIP() << status.message();
  }
};

struct Watched {
  std::vector<std::atomic<uint64_t>> counters;
  std::vector<uint64_t> first;
  bool moved = false;
  bool ran = false;
};

// Runs in the helper. Checks that no counter changes for some milliseconds.
void Watch(void* argument) {
  Watched& watched = *static_cast<Watched*>(argument);
  for (size_t i = 0; i < watched.counters.size(); ++i) {
    watched.first[i] = watched.counters[i];
  }
  const timespec pause{0, 5'000'000};
  ::nanosleep(&pause, nullptr);
  for (size_t i = 0; i < watched.counters.size(); ++i) {
    watched.moved |= watched.counters[i] != watched.first[i];
  }
  watched.ran = true;
}

TEST_F(ThreadStop, NoThreadMovesMeanwhileAndAllGoOnAfterwards) {
  constexpr size_t kThreads = 6;
  Watched watched;
  watched.counters = std::vector<std::atomic<uint64_t>>(kThreads);
  watched.first.resize(kThreads);
  std::atomic<bool> stop{false};
  std::vector<std::jthread> threads;
  for (size_t i = 0; i + 1 < kThreads; ++i) {
    threads.emplace_back([&, i] {
      while (!stop) ++watched.counters[i];
    });
  }
  // Threads that start and end increment the last counter.
  threads.emplace_back([&] {
    while (!stop) std::jthread([&] { ++watched.counters.back(); });
  });
  const SignalsBlocked blocked;
  for (int round = 0; round < 20; ++round) {
    watched.ran = watched.moved = false;
    const Status status = WhileOthersStopped(Watch, &watched, 10s);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(watched.ran);
    EXPECT_FALSE(watched.moved);
    for (size_t i = 0; i < kThreads; ++i) {
      const uint64_t before = watched.counters[i];
      while (watched.counters[i] == before) std::this_thread::yield();
    }
  }
  stop = true;
}

TEST_F(ThreadStop, SystemCallsGoOnAndSignalsArrive) {
  static std::atomic<int> arrived{0};
  struct sigaction action {};
  struct sigaction before {};
  action.sa_handler = [](int) { ++arrived; };
  action.sa_flags = SA_RESTART;
  ASSERT_EQ(::sigaction(SIGUSR1, &action, &before), 0);
  std::array<int, 2> ends;
  ASSERT_EQ(::pipe(ends.data()), 0);
  std::atomic<int> got{0};
  std::atomic<bool> reading{false};
  std::jthread reader([&] {
    char byte = 0;
    reading = true;
    got = ::read(ends[0], &byte, 1) == 1 ? byte : -1;
  });
  while (!reading) std::this_thread::yield();
  {
    const SignalsBlocked blocked;
    std::atomic<bool> stop{false};
    std::jthread sender([&] {
      while (!stop) ::pthread_kill(reader.native_handle(), SIGUSR1);
    });
    Watched none;
    for (int round = 0; round < 50; ++round) {
      ASSERT_TRUE(WhileOthersStopped(Watch, &none, 10s).ok());
    }
    stop = true;
  }
  EXPECT_GT(arrived, 0);
  EXPECT_EQ(::write(ends[1], "x", 1), 1);
  reader.join();
  EXPECT_EQ(got, 'x');
  ::close(ends[0]);
  ::close(ends[1]);
  ::sigaction(SIGUSR1, &before, nullptr);
}

TEST_F(ThreadStop, TryingLeavesNoTracer) { EXPECT_FALSE(IsTraced()); }

}  // namespace
}  // namespace haulway
