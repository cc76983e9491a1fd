#include "base/memory_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <memory>
#include <system_error>

#include "haulway/machine.h"

namespace haulway {

namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE;

using Directory = std::unique_ptr<DIR, int (*)(DIR*)>;

// Returns the target of the symbolic link at `path`, or an empty string if the
// link cannot be read.
std::string LinkTarget(const std::string& path) {
  std::array<char, 320> target;
  const ssize_t length = ::readlink(path.c_str(), target.data(), target.size());
  return length < 0 ? std::string() : std::string(target.data(), length);
}

// Returns the error for a process whose files cannot be looked at, if a limit
// of this process is the reason. Otherwise the process has just ended, or
// belongs to another user, and is skipped.
Status CheckOwnLimits(int error) {
  if (error != EMFILE && error != ENFILE && error != ENOMEM) return Status();
  return Status::FromErrno(error, "cannot look for shared memory");
}

// Opens the file if the process holds it. Returns an empty UniqueFd if not.
Result<UniqueFd> FindIn(const std::string& process, const std::string& target) {
  const std::string folder = fmt::format("/proc/{}/fd", process);
  const Directory files(::opendir(folder.c_str()), &::closedir);
  if (files == nullptr) {
    HAULWAY_TRY(CheckOwnLimits(errno));
    return UniqueFd();
  }
  while (const dirent* file = ::readdir(files.get())) {
    const std::string path = fmt::format("{}/{}", folder, file->d_name);
    if (LinkTarget(path) != target) continue;
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (fd.get() < 0) HAULWAY_TRY(CheckOwnLimits(errno));
    // Another file may have reused the descriptor number meanwhile.
    if (fd.get() >= 0 &&
        LinkTarget(fmt::format("/proc/self/fd/{}", fd.get())) == target) {
      return fd;
    }
  }
  return UniqueFd();
}

bool IsOurs(int fd) {
  struct stat facts;
  return ::fstat(fd, &facts) == 0 && facts.st_uid == ::geteuid();
}

}  // namespace

Result<UniqueFd> CreateMemoryFile(const std::string& label) {
  UniqueFd fd(::memfd_create(label.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.get() < 0) {
    return Status::FromErrno(errno, "cannot create a memory file");
  }
  return fd;
}

Status SealMemoryFile(int fd) {
  if (::fcntl(fd, F_ADD_SEALS, kSeals) == 0) return Status();
  if (errno == EBUSY) {
    return Status(Code::kUnavailable,
                  "the memory file is still mapped for writing");
  }
  return Status::FromErrno(errno, "cannot seal a memory file");
}

bool IsSealed(int fd) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  return seals >= 0 && (seals & kSeals) == kSeals;
}

Result<UniqueFd> ReopenForReading(int fd) {
  UniqueFd again(::open(fmt::format("/proc/self/fd/{}", fd).c_str(),
                        O_RDONLY | O_CLOEXEC));
  if (again.get() < 0) {
    return Status::FromErrno(errno, "cannot reopen a memory file");
  }
  return again;
}

Status VisitMemoryFiles(
    std::string_view label_prefix,
    const std::function<void(uint32_t pid, const std::string& path)>& visit) {
  const Directory processes(::opendir("/proc"), &::closedir);
  if (processes == nullptr) {
    return Status::FromErrno(errno, "cannot read /proc");
  }
  const std::string target = fmt::format("/memfd:{}", label_prefix);
  while (const dirent* process = ::readdir(processes.get())) {
    const std::string_view name = process->d_name;
    uint32_t pid = 0;
    const auto [end, error] =
        std::from_chars(name.data(), name.data() + name.size(), pid);
    if (error != std::errc() || end != name.data() + name.size()) continue;
    const std::string folder = fmt::format("/proc/{}/fd", pid);
    // Processes of other users cannot be inspected.
    const Directory files(::opendir(folder.c_str()), &::closedir);
    if (files == nullptr) {
      HAULWAY_TRY(CheckOwnLimits(errno));
      continue;
    }
    while (const dirent* file = ::readdir(files.get())) {
      const std::string path = fmt::format("{}/{}", folder, file->d_name);
      if (LinkTarget(path).starts_with(target)) visit(pid, path);
    }
  }
  return Status();
}

Status NoSharedMemory(int os_error, const char* what, uint64_t bytes) {
  if (os_error != ENOMEM && os_error != ENOSPC && os_error != EFBIG) {
    return Status::FromErrno(os_error, what);
  }
  uint64_t available = LookAtMachine().available_memory;
  std::string_view by;
  rlimit files = {};
  if (::getrlimit(RLIMIT_FSIZE, &files) == 0 && files.rlim_cur < available) {
    available = files.rlim_cur;
    by = " by RLIMIT_FSIZE";
  }
  return Status(
      Code::kLimit,
      fmt::format("no memory to share: {} bytes wanted, {} available{}", bytes,
                  available, by));
}

Result<UniqueFd> FindMemoryFile(std::string_view label, uint64_t likely_pid) {
  const std::string target = fmt::format("/memfd:{} (deleted)", label);
  HAULWAY_ASSIGN(UniqueFd likely,
                 FindIn(fmt::format("{}", likely_pid), target));
  if (likely.get() >= 0 && IsOurs(likely.get())) return likely;
  const Directory processes(::opendir("/proc"), &::closedir);
  if (processes == nullptr) {
    return Status::FromErrno(errno, "cannot read /proc");
  }
  bool is_of_another = false;
  while (const dirent* process = ::readdir(processes.get())) {
    if (process->d_name[0] < '1' || process->d_name[0] > '9') continue;
    HAULWAY_ASSIGN(UniqueFd fd, FindIn(process->d_name, target));
    if (fd.get() < 0) continue;
    if (IsOurs(fd.get())) return fd;
    is_of_another = true;
  }
  if (is_of_another) {
    return Status(Code::kPermissionDenied,
                  "the shared memory belongs to another user");
  }
  return Status(Code::kNotFound,
                "no process that can be looked into holds the shared memory");
}

}  // namespace haulway
