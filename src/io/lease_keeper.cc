// Who is being asked for a lease is found by asking every lease for its state
// (F_GETLEASE), not by what the signal says: descriptors may be closed behind
// our back, and where too many signals wait the kernel sends a bare SIGIO.
// Since the lease belongs to the open file, which a mapping keeps open too, a
// lease whose descriptor was closed still asks, and ends with the mapping.
//
// How: one thread waits for that signal, sent to it alone, and brings the asked
// mapping into memory within half of the time for which the kernel holds
// whoever wants to change the file. It asks all leases every few seconds, too:
// a process that changed its user may no longer be sent the signal. A handler
// of the signal in the program's own threads was left out: it may do next to
// nothing there, and the program may have one of its own.

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

#include "base/thread_stop.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// What is surely copied in a second to memory that the machine has to find
// first; see docs/loading.md. Half of the kernel's patience is for that.
constexpr uint64_t kBytesPerSecond = 512 * kMiB;

// Sent to the keeper's thread, which alone is concerned.
int LeaseSignal() { return SIGRTMAX - 3; }

// What threads may take to stop, in all, each time that leases are asked for.
constexpr std::chrono::milliseconds kStopPatience(200);

using Clock = std::chrono::steady_clock;

// For how long the kernel holds who wants to change a file; `known` where that
// cannot be read any more.
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
  struct stat file;          // As it was leased.
  Clock::time_point intact;  // When nobody had asked for the lease.
  bool asked = false;        // It is given up next.
};

// Whether the descriptor still is the file that was leased: programs may close
// descriptors that are not theirs.
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
    // Asked for first, so that the kernel makes nobody else the owner.
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
    // The first: the thread begins to ask now and then.
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

  // Before a fork: nothing depends on a lease any more, and the thread is gone.
  // Leaves the keeper locked.
  void Prepare() {
    std::unique_lock lock(mutex_);
    while (thread_.joinable()) {
      if (!ending_) {
        ending_ = true;
        // Not LeaseSignal(): where too many wait, the kernel refuses another.
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
  // Requires: locked, as for what follows.
  Status Start() {
    if (ending_) return Status(Code::kUnsupported, "the process forks");
    if (IsTraced()) {
      return Status(Code::kUnsupported, "a debugger traces this process");
    }
    if (thread_.joinable() || !refusal_.ok()) return refusal_;
    const auto creator = static_cast<pid_t>(::syscall(SYS_gettid));
    std::promise<Status> promise;
    auto tried = promise.get_future();
    try {
      const AllSignalsBlocked blocked;  // The thread inherits this.
      thread_ =
          std::thread([this, creator, told = std::move(promise)]() mutable {
            thread_id_ = static_cast<pid_t>(::syscall(SYS_gettid));
            call_filters_ = CountCallFilters();
            Status status = TryThreadStop(creator);
            const bool possible = status.ok();
            told.set_value(std::move(status));
            if (possible) Run();
          });
    } catch (const std::system_error&) {
    }
    if (!thread_.joinable()) {
      return Status(Code::kUnsupported, "no thread can be started");
    }
    refusal_ = tried.get();
    if (!refusal_.ok()) thread_.join();
    return refusal_;
  }

  // The thread.
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
        std::this_thread::sleep_for(kStopPatience);  // It is filtered.
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

  // Several times while the kernel waits.
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

  // What is surely copied while the kernel waits.
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
    // The time may have been made shorter.
    const uint64_t most = MostBytes();
    for (uint64_t left = LeasedBytes(leases_.begin(), asked); left > most;) {
      left -= (--asked)->bytes;
    }
    if (asked == leases_.end()) return;
    // Who was given a filter since may be killed for stopping threads.
    std::chrono::milliseconds patience(0);
    if (CountCallFilters() == call_filters_) {
      patience =
          std::min(kStopPatience, std::chrono::milliseconds(break_time_) / 8);
    }
    for (auto lease = asked; lease != leases_.end(); ++lease) {
      lease->leased->BecomeIndependent(IsOurs(*lease) ? lease->fd : -1,
                                       &patience);
      // A process that was stopped for long may come too late.
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
  int call_filters_ = 0;  // That the thread had when it was started.
  std::chrono::seconds break_time_{0};  // As it was read last.
  Status refusal_;                      // Why threads cannot be stopped.
  bool ending_ = false;                 // The thread is told to end.
  bool ended_ = false;  // It waits for nothing but to be joined.
  std::condition_variable changed_;
};

// The code stays where it is, as the thread and fork(2) need it.
void StayLoaded() {
  Dl_info self;
  if (::dladdr(reinterpret_cast<void*>(&StayLoaded), &self) != 0) {
    (void)::dlopen(self.dli_fname, RTLD_LAZY | RTLD_NOLOAD | RTLD_NODELETE);
  }
}

// Never destroyed: the thread may outlive main().
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
