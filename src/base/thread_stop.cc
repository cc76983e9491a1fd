// Design: the helper shares the memory of this process (CLONE_VM) but is a
// separate process, because a thread cannot trace its own thread group. The
// helper uses the caller's thread-local storage, like a child of vfork(2), so
// the caller only waits for it. Everything the helper needs is allocated
// before: the helper calls nothing that could allocate or lock.
//
// Tried instead: write protection by mprotect(2), which needs a SIGSEGV handler
// and makes system calls that write to the memory fail with EFAULT;
// userfaultfd(2), which does not protect private mappings of files; a signal to
// every thread, which needs a handler and fails for threads that block the
// signal.

#include "base/thread_stop.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <string>
#include <string_view>

#include "base/posix.h"

namespace haulway {

namespace {

// ThreadSanitizer treats the helper like a forked child, which breaks it.
#if defined(__SANITIZE_THREAD__)  // GCC
constexpr bool kThreadSanitizer = true;
#elif defined(__has_feature)  // Clang
constexpr bool kThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kThreadSanitizer = false;
#endif

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kMostThreads = 1 << 16;
// Flags of kernel threads, in /proc/PID/stat.
constexpr unsigned long kIoWorker = 0x10;
constexpr unsigned long kUserWorker = 0x4000;

struct SeizedThread {
  pid_t id;
  int signal;  // A pending signal to pass on.
  bool stopped;
};

enum class Outcome : int { kDied, kDone, kRefused, kTimeout, kFailed };

// Data shared by the caller and the helper.
struct Call {
  pid_t process;
  pid_t caller;
  pid_t probe;  // If not 0, only this thread is seized, and it is not stopped.
  int task_folder;
  int64_t deadline_ns;
  void (*work)(void*);
  void* argument;
  std::atomic<uint32_t> may_begin;
  std::atomic<Outcome> outcome;
  std::atomic<int> error;
  size_t count;
  alignas(8) std::array<char, 32768> listing;
  std::array<SeizedThread, kMostThreads> threads;
};

// An anonymous mapping.
class Stacks {
 public:
  explicit Stacks(size_t bytes)
      : bytes_(bytes),
        address_(::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks() {
    if (ok()) ::munmap(address_, bytes_);
  }
  bool ok() const { return address_ != MAP_FAILED; }
  void* begin() const { return address_; }
  void* end() const { return static_cast<char*>(address_) + bytes_; }

 private:
  const size_t bytes_;
  void* const address_;
};

int64_t NowNs() {
  timespec now;
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * int64_t{1'000'000'000} + now.tv_nsec;
}

// Returns whether the thread is a kernel thread or is ending, and so runs no
// code of ours.
bool RunsNoCode(const Call& call, pid_t thread) {
  std::array<char, 32> path;
  std::snprintf(path.data(), path.size(), "%d/stat", thread);
  const int fd = ::openat(call.task_folder, path.data(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return true;  // The thread has ended.
  std::array<char, 512> text{};
  const ssize_t length = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  if (length <= 0) return true;
  // After the name, which may contain any character: state, five ids, flags.
  const char* at = std::strrchr(text.data(), ')');
  if (at == nullptr || at[1] == '\0') return false;
  const char state = at[2];
  if (state == 'Z' || state == 'X') return true;
  at += 2;
  for (int field = 0; field < 6 && at != nullptr; ++field) {
    at = std::strchr(at + 1, ' ');
  }
  if (at == nullptr) return false;
  const unsigned long flags = std::strtoul(at, nullptr, 10);
  return (flags & (kIoWorker | kUserWorker)) != 0;
}

bool IsSeized(const Call& call, pid_t thread) {
  for (size_t i = 0; i < call.count; ++i) {
    if (call.threads[i].id == thread) return true;
  }
  return false;
}

Outcome Seize(Call& call, pid_t thread) {
  if (::ptrace(PTRACE_SEIZE, thread, nullptr, nullptr) != 0) {
    const int error = errno;
    // Also reached if the thread does not exist: /proc may list the threads of
    // another PID namespace.
    if (RunsNoCode(call, thread)) return Outcome::kDone;
    call.error = error;
    return Outcome::kRefused;
  }
  if (call.probe != 0) return Outcome::kDone;
  if (call.count == kMostThreads) return Outcome::kFailed;
  call.threads[call.count++] = {thread, 0, false};
  ::ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr);
  return Outcome::kDone;
}

// Seizes every thread that is not seized yet, and returns their number in
// `found`.
Outcome SeizeNew(Call& call, size_t* found) {
  const size_t before = call.count;
  if (::lseek(call.task_folder, 0, SEEK_SET) != 0) return Outcome::kFailed;
  while (true) {
    const long length = ::syscall(SYS_getdents64, call.task_folder,
                                  call.listing.data(), call.listing.size());
    if (length < 0) {
      call.error = errno;
      return Outcome::kFailed;
    }
    if (length == 0) break;
    for (long at = 0; at < length;) {
      // struct linux_dirent64: record length at offset 16, name at offset 19.
      uint16_t record = 0;
      std::memcpy(&record, call.listing.data() + at + 16, sizeof record);
      const pid_t thread = std::atoi(call.listing.data() + at + 19);
      at += record;
      if (thread <= 0 || thread == call.caller || IsSeized(call, thread)) {
        continue;
      }
      const Outcome outcome = Seize(call, thread);
      if (outcome != Outcome::kDone) return outcome;
    }
  }
  *found = call.count - before;
  return Outcome::kDone;
}

// Waits until all seized threads have stopped or ended.
Outcome AwaitStops(Call& call) {
  long pause_ns = 20'000;
  while (true) {
    bool all = true;
    for (size_t i = 0; i < call.count; ++i) {
      SeizedThread& thread = call.threads[i];
      if (thread.stopped || thread.id == 0) continue;
      int status = 0;
      const pid_t got = ::waitpid(thread.id, &status, __WALL | WNOHANG);
      if (got == thread.id && WIFSTOPPED(status)) {
        thread.stopped = true;
        // A ptrace event stop, not a stop on delivery of a signal.
        const bool by_event = (status >> 16) != 0;
        thread.signal = by_event ? 0 : WSTOPSIG(status);
      } else if (got != 0) {
        thread.id = 0;  // The thread has ended.
      } else {
        all = false;
      }
    }
    if (all) return Outcome::kDone;
    if (NowNs() > call.deadline_ns) return Outcome::kTimeout;
    const timespec pause{0, pause_ns};
    ::nanosleep(&pause, nullptr);
    pause_ns = pause_ns < 1'000'000 ? 2 * pause_ns : pause_ns;
  }
}

Outcome StopAll(Call& call) {
  // Threads that still run may start others, so repeat until none is new.
  for (size_t found = 1; found > 0;) {
    Outcome outcome = SeizeNew(call, &found);
    if (outcome == Outcome::kDone) outcome = AwaitStops(call);
    if (outcome != Outcome::kDone) return outcome;
  }
  return Outcome::kDone;
}

// Entry point of the helper.
int Help(void* shared) {
  Call& call = *static_cast<Call*>(shared);
  // When the helper ends, for whatever reason, the kernel releases the threads
  // it has seized.
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != call.process) return 0;
  while (call.may_begin.load() == 0) {
    ::syscall(SYS_futex, &call.may_begin, FUTEX_WAIT, 0, nullptr, nullptr, 0);
  }
  if (call.probe != 0) {
    call.outcome = Seize(call, call.probe);
    return 0;
  }
  const Outcome outcome = StopAll(call);
  if (outcome == Outcome::kDone) call.work(call.argument);
  for (size_t i = 0; i < call.count; ++i) {
    const SeizedThread& thread = call.threads[i];
    if (thread.id == 0 || !thread.stopped) continue;
    ::ptrace(PTRACE_DETACH, thread.id, nullptr,
             reinterpret_cast<void*>(static_cast<intptr_t>(thread.signal)));
  }
  call.outcome = outcome;
  return 0;
}

std::string ReadSmall(const char* path) {
  std::string text(4096, '\0');
  const UniqueFd fd(::open(path, O_RDONLY | O_CLOEXEC));
  const ssize_t length =
      fd.get() < 0 ? 0 : ::read(fd.get(), text.data(), text.size());
  text.resize(length > 0 ? static_cast<size_t>(length) : 0);
  return text;
}

// Returns a number from /proc/thread-self/status, or 0 if the name is missing.
int StatusNumber(std::string_view name) {
  const std::string text = ReadSmall("/proc/thread-self/status");
  const size_t at = text.find(fmt::format("\n{}:", name));
  if (at == std::string::npos) return 0;
  return std::atoi(text.c_str() + at + name.size() + 2);
}

// Returns whether probing could kill this process. A seccomp filter that kills
// callers of ptrace(2) kills the helper, and before Linux 5.16 also every
// process that shares the helper's memory.
bool MayBeKilled() {
  constexpr int kFiltered = 2;
  if (StatusNumber("Seccomp") != kFiltered) return false;
  utsname name;
  int major = 0;
  int minor = 0;
  if (::uname(&name) != 0 ||
      std::sscanf(name.release, "%d.%d", &major, &minor) != 2) {
    return true;
  }
  return major < 5 || (major == 5 && minor < 16);
}

Status Refused(std::string_view why) {
  return Status(Code::kUnsupported,
                fmt::format("threads cannot be stopped: {}", why));
}

// Starts a helper for `call` and waits for it.
Status Run(Call& call) {
  call.process = ::getpid();
  call.caller = static_cast<pid_t>(::syscall(SYS_gettid));
  if (StatusNumber("Pid") != call.caller) {
    return Refused("/proc is that of another namespace");
  }
  const UniqueFd folder(
      ::open("/proc/self/task", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return Refused("/proc lists none");
  call.task_folder = folder.get();
  const Stacks stack(kStackBytes);
  if (!stack.ok()) return Status::FromErrno(errno, "no stack for a helper");
  const pid_t helper =
      ::clone(Help, stack.end(),
              CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_UNTRACED, &call);
  if (helper < 0) {
    return Refused(
        fmt::format("no process can be started: {}", std::strerror(errno)));
  }
  // Where Yama restricts tracing to descendants, this permits the helper.
  const bool restricted =
      ReadSmall("/proc/sys/kernel/yama/ptrace_scope").starts_with('1');
  if (restricted) ::prctl(PR_SET_PTRACER, helper, 0, 0, 0);
  call.may_begin = 1;
  ::syscall(SYS_futex, &call.may_begin, FUTEX_WAKE, 1, nullptr, nullptr, 0);
  int status = 0;
  while (::waitpid(helper, &status, __WALL) < 0 && errno == EINTR) {
  }
  if (restricted) ::prctl(PR_SET_PTRACER, 0, 0, 0, 0);
  switch (call.outcome.load()) {
    case Outcome::kDone:
      return Status();
    case Outcome::kTimeout:
      return Status(Code::kTimeout, "a thread does not come to a stop");
    case Outcome::kDied:
      return Refused("ptrace(2) ends its caller");
    case Outcome::kRefused:
    case Outcome::kFailed:
      break;
  }
  return Refused(std::strerror(call.error));
}

}  // namespace

bool IsTraced() { return StatusNumber("TracerPid") != 0; }

int CountCallFilters() {
  // Seccomp_filters exists since Linux 5.9. Before that, Seccomp is a mode,
  // which is 2 for any number of filters.
  const int filters = StatusNumber("Seccomp_filters");
  return filters > 0 ? filters : StatusNumber("Seccomp");
}

Status TryThreadStop(pid_t thread) {
  if (IsTraced()) return Refused("a debugger traces this process");
  if (kThreadSanitizer) return Refused("ThreadSanitizer watches them");
  if (MayBeKilled()) return Refused("system calls are filtered");
  const Stacks memory(sizeof(Call));
  if (!memory.ok()) return Status::FromErrno(errno, "no memory for a helper");
  Call& call = *new (memory.begin()) Call;
  call.probe = thread;
  return Run(call);
}

Status WhileOthersStopped(void (*work)(void* argument), void* argument,
                          std::chrono::milliseconds patience) {
  const Stacks memory(sizeof(Call));
  if (!memory.ok()) return Status::FromErrno(errno, "no memory for a helper");
  Call& call = *new (memory.begin()) Call;
  call.work = work;
  call.argument = argument;
  call.deadline_ns = NowNs() + patience.count() * int64_t{1'000'000};
  return Run(call);
}

}  // namespace haulway
