// Broken leases are found by querying the state of every lease (F_GETLEASE),
// not from the signal: other code may close our descriptors, and if too many
// signals are queued the kernel sends a plain SIGIO. The lease belongs to the
// open file description, which a mapping also keeps open. So a lease whose
// descriptor was closed is still broken by the kernel, and ends with the
// mapping.
//
// Design: one thread waits for the signal, which is sent to that thread alone.
// It copies the mapping to memory within half of the time for which the kernel
// blocks the process that wants to change the file. It also queries all leases
// every few seconds, because a process that changed its user may no longer
// receive the signal. Not used: a signal handler in the program's own threads,
// which may do next to nothing and may conflict with a handler of the program.

#include "io/lease_keeper.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "haulway/options.h"

namespace haulway {

namespace {

// Copy speed that can be relied on, for memory that the machine has to reclaim
// first; see docs/loading.md. Half of the kernel's timeout is reserved for
// copying.
constexpr uint64_t kBytesPerSecond = 512 * kMiB;

// Returns the signal, which is sent to the keeper's thread only.
int LeaseSignal() { return SIGRTMAX - 3; }

// Time between two queries where a filter refuses to wait for the signal.
constexpr std::chrono::milliseconds kPauseWithoutSignals(200);

using Clock = std::chrono::steady_clock;

// Returns how long the kernel blocks a process that wants to change a leased
// file, or `known` if the setting can no longer be read.
std::chrono::seconds ReadBreakTime(std::chrono::seconds known) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen("/proc/sys/fs/lease-break-time", "re"), &std::fclose);
  unsigned seconds = 0;
  if (file == nullptr || std::fscanf(file.get(), "%u", &seconds) != 1) {
    return known;
  }
  return std::chrono::seconds(seconds);
}

struct Lease {
  Leased* leased;
  int fd;  // Closed with the lease.
  uint64_t bytes;
  struct stat file;          // The state when leased.
  Clock::time_point intact;  // The last time the lease was found unbroken.
  bool asked = false;        // The lease is given up next.
};

// Returns whether the descriptor still refers to the leased file: programs may
// close descriptors that are not theirs.
bool IsOurs(const Lease& lease) {
  struct stat facts;
  return ::fstat(lease.fd, &facts) == 0 && facts.st_dev == lease.file.st_dev &&
         facts.st_ino == lease.file.st_ino &&
         ::fcntl(lease.fd, F_GETSIG) == LeaseSignal();
}

bool WasChanged(const Lease& lease) {
  struct stat facts;
  if (!IsOurs(lease) || ::fstat(lease.fd, &facts) != 0) return false;
  return facts.st_size != lease.file.st_size ||
         facts.st_mtim.tv_sec != lease.file.st_mtim.tv_sec ||
         facts.st_mtim.tv_nsec != lease.file.st_mtim.tv_nsec;
}

void LetGo(const Lease& lease) {
  if (!IsOurs(lease)) return;
  ::fcntl(lease.fd, F_SETLEASE, F_UNLCK);
  ::close(lease.fd);
}

Status NoLease(int error) {
  switch (error) {
    case EACCES:
    case EPERM:
      return Status(Code::kUnsupported, "the file is somebody else's");
    case EAGAIN:
      return Status(Code::kUnsupported, "it is open for writing");
    default:
      return Status(Code::kUnsupported, "it takes no leases");
  }
}

class Keeper {
 public:
  Status Keep(UniqueFd file, uint64_t bytes, Leased* leased) {
    const int fd = file.get();
    const std::lock_guard lock(mutex_);
    const uint64_t all = bytes + LeasedBytes(leases_.begin(), leases_.end());
    const uint64_t most = MostBytes();
    if (all > most) {
      return Status(Code::kUnsupported,
                    fmt::format("{} MiB would be leased in all: expected at "
                                "most {}",
                                all / kMiB, most / kMiB));
    }
    struct stat facts;
    if (::fstat(fd, &facts) != 0) return NoLease(errno);
    HAULWAY_TRY(Start());
    // Set the owner before the lease, so that the kernel sets no other owner.
    const f_owner_ex owner{F_OWNER_TID, thread_id_};
    if (::fcntl(fd, F_SETSIG, LeaseSignal()) != 0 ||
        ::fcntl(fd, F_SETOWN_EX, &owner) != 0) {
      return NoLease(ENOSYS);
    }
    leases_.push_back({leased, fd, bytes, facts, Clock::now()});
    if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) {
      const int error = errno;
      leases_.pop_back();
      return NoLease(error);
    }
    (void)file.Release();
    // The first lease: wakes the thread, which then queries leases regularly.
    if (leases_.size() == 1) ::pthread_kill(thread_.native_handle(), SIGIO);
    return Status();
  }

  void Drop(Leased* leased) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(leases_, leased, &Lease::leased);
    if (found == leases_.end()) return;
    LetGo(*found);
    leases_.erase(found);
  }

  // Prepares for a fork: makes all data independent of leases and ends the
  // thread. Returns with the keeper locked.
  void Prepare() {
    std::unique_lock lock(mutex_);
    while (thread_.joinable()) {
      if (!ending_) {
        ending_ = true;
        // Not LeaseSignal(): the kernel refuses it if too many are queued.
        ::pthread_kill(thread_.native_handle(), SIGIO);
      }
      changed_.wait(lock, [&] { return ended_ || !thread_.joinable(); });
      if (!ended_) continue;  // Another thread that forks has joined it.
      thread_.join();
      ending_ = ended_ = false;
      changed_.notify_all();
    }
    lock.release();
  }
  void Resume() { mutex_.unlock(); }

 private:
  // Requires the mutex, like the functions below.
  Status Start() {
    if (ending_) return Status(Code::kUnsupported, "the process forks");
    if (thread_.joinable()) return Status();
    try {
      // The new thread inherits the signal mask.
      const AllSignalsBlocked blocked;
      std::promise<pid_t> promise;
      auto id = promise.get_future();
      thread_ = std::thread([this, told = std::move(promise)]() mutable {
        told.set_value(static_cast<pid_t>(::syscall(SYS_gettid)));
        Run();
      });
      thread_id_ = id.get();
    } catch (const std::system_error&) {
      return Status(Code::kUnsupported, "no thread can be started");
    }
    return Status();
  }

  // The thread's function.
  void Run() {
    ::pthread_setname_np(::pthread_self(), "haulway-leases");
    sigset_t awaited;
    ::sigemptyset(&awaited);
    ::sigaddset(&awaited, LeaseSignal());
    ::sigaddset(&awaited, SIGIO);
    bool idle = true;
    timespec pause{};
    while (true) {
      if (::sigtimedwait(&awaited, nullptr, idle ? nullptr : &pause) < 0 &&
          errno != EAGAIN && errno != EINTR) {
        // A system call filter refuses sigtimedwait(2).
        std::this_thread::sleep_for(kPauseWithoutSignals);
      }
      const std::lock_guard lock(mutex_);
      Serve(/*all=*/ending_);
      idle = leases_.empty();
      pause = PauseBetweenLooks();
      if (!ending_) continue;
      ended_ = true;
      changed_.notify_all();
      return;
    }
  }

  // Returns the time between two queries, several of which fit in the kernel's
  // timeout.
  timespec PauseBetweenLooks() const {
    const int64_t ms = std::chrono::milliseconds(break_time_).count() / 8 + 1;
    return {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  }

  static uint64_t LeasedBytes(std::vector<Lease>::const_iterator begin,
                              std::vector<Lease>::const_iterator end) {
    return std::accumulate(
        begin, end, uint64_t{0},
        [](uint64_t sum, const Lease& lease) { return sum + lease.bytes; });
  }

  // Returns how many bytes can be copied reliably while the kernel waits.
  uint64_t MostBytes() {
    break_time_ = ReadBreakTime(break_time_);
    return static_cast<uint64_t>(break_time_.count()) * kBytesPerSecond / 2;
  }

  void Serve(bool all) {
    const auto now = Clock::now();
    for (Lease& lease : leases_) {
      const bool intact =
          IsOurs(lease) && ::fcntl(lease.fd, F_GETLEASE) == F_RDLCK;
      if (intact) lease.intact = now;
      lease.asked = all || !intact;
    }
    auto asked = std::partition(leases_.begin(), leases_.end(),
                                std::not_fn(&Lease::asked));
    // The timeout may have been shortened.
    const uint64_t most = MostBytes();
    for (uint64_t left = LeasedBytes(leases_.begin(), asked); left > most;) {
      left -= (--asked)->bytes;
    }
    if (asked == leases_.end()) return;
    for (auto lease = asked; lease != leases_.end(); ++lease) {
      lease->leased->BecomeIndependent(IsOurs(*lease) ? lease->fd : -1);
      // A process that was suspended for long may be too late.
      if (Clock::now() - lease->intact >= break_time_ && WasChanged(*lease)) {
        lease->leased->BecomeUnusable();
      }
      LetGo(*lease);
    }
    leases_.erase(asked, leases_.end());
  }

  std::mutex mutex_;
  std::vector<Lease> leases_;
  std::thread thread_;
  pid_t thread_id_ = 0;
  std::chrono::seconds break_time_{0};  // The last value read.
  bool ending_ = false;                 // The thread is told to end.
  bool ended_ = false;                  // The thread is about to return.
  std::condition_variable changed_;
};

// Keeps this library loaded: the thread and fork(2) call its code.
void StayLoaded() {
  Dl_info self;
  if (::dladdr(reinterpret_cast<void*>(&StayLoaded), &self) != 0) {
    (void)::dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

// Returns the keeper, which is never destroyed: the thread may outlive main().
Keeper& TheKeeper() {
  static Keeper* const keeper = [] {
    auto* made = new Keeper();
    StayLoaded();
    ::pthread_atfork([] { TheKeeper().Prepare(); },
                     [] { TheKeeper().Resume(); },
                     [] { TheKeeper().Resume(); });
    return made;
  }();
  return *keeper;
}

}  // namespace

Status KeepLease(UniqueFd fd, uint64_t bytes, Leased* leased) {
  return TheKeeper().Keep(std::move(fd), bytes, leased);
}

void DropLease(Leased* leased) { TheKeeper().Drop(leased); }

}  // namespace haulway
