// Who is being asked for a lease is found by asking every lease for its state
// (F_GETLEASE), not by what the signal says: descriptors may be closed behind
// our back, and where too many signals wait the kernel sends a bare SIGIO.
// Since the lease belongs to the open file, which a mapping keeps open too, a
// lease whose descriptor was closed still asks, and ends with the mapping.
//
// How: one thread waits for that signal, sent to it alone, and brings the asked
// mapping into memory within half of the time for which the kernel holds
// whoever wants to change the file. A handler of the signal in the program's
// own threads was left out: it may do next to nothing there, and the program
// may have one of its own.

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
#include <future>
#include <memory>
#include <mutex>
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

// For how long the kernel holds who wants to change a file.
uint64_t BreakSeconds() {
  std::unique_ptr<FILE, int (*)(FILE*)> file(
      std::fopen("/proc/sys/fs/lease-break-time", "re"), &std::fclose);
  unsigned seconds = 0;
  if (file == nullptr || std::fscanf(file.get(), "%u", &seconds) != 1) return 0;
  return seconds;
}

struct Lease {
  Leased* leased;
  int fd;  // Closed with the lease.
  uint64_t bytes;
  dev_t device;
  ino_t inode;
};

// Whether the descriptor still is the file that was leased: programs may close
// descriptors that are not theirs.
bool IsOurs(const Lease& lease) {
  struct stat facts;
  return ::fstat(lease.fd, &facts) == 0 && facts.st_dev == lease.device &&
         facts.st_ino == lease.inode &&
         ::fcntl(lease.fd, F_GETSIG) == LeaseSignal();
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
    uint64_t all = bytes;
    for (const Lease& lease : leases_) all += lease.bytes;
    const uint64_t most = BreakSeconds() * kBytesPerSecond / 2;
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
    leases_.push_back({leased, fd, bytes, facts.st_dev, facts.st_ino});
    if (::fcntl(fd, F_SETLEASE, F_RDLCK) != 0) {
      const int error = errno;
      leases_.pop_back();
      return NoLease(error);
    }
    (void)file.Release();
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
    sigset_t all;
    sigset_t before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);  // For the thread to have.
    try {
      thread_ =
          std::thread([this, creator, told = std::move(promise)]() mutable {
            thread_id_ = static_cast<pid_t>(::syscall(SYS_gettid));
            Status status = TryThreadStop(creator);
            const bool possible = status.ok();
            told.set_value(std::move(status));
            if (possible) Run();
          });
    } catch (const std::system_error&) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
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
    while (true) {
      if (::sigwaitinfo(&awaited, nullptr) < 0) continue;
      const std::lock_guard lock(mutex_);
      Serve(/*all=*/ending_);
      if (!ending_) continue;
      ended_ = true;
      changed_.notify_all();
      return;
    }
  }

  void Serve(bool all) {
    const std::chrono::milliseconds patience(BreakSeconds() * 400);
    std::erase_if(leases_, [&](const Lease& lease) {
      if (!all && IsOurs(lease) && ::fcntl(lease.fd, F_GETLEASE) == F_RDLCK) {
        return false;
      }
      lease.leased->BecomeIndependent(IsOurs(lease) ? lease.fd : -1, patience);
      LetGo(lease);
      return true;
    });
  }

  std::mutex mutex_;
  std::vector<Lease> leases_;
  std::thread thread_;
  pid_t thread_id_ = 0;
  Status refusal_;       // Of stopping threads, found once.
  bool ending_ = false;  // The thread is told to end.
  bool ended_ = false;   // It waits for nothing but to be joined.
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
