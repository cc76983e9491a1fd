#include "publish/name_folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <fstream>
#include <memory>
#include <system_error>
#include <thread>

#include "base/text.h"
#include "publish/publication_layout.h"

namespace haulway::publish {

namespace {

constexpr std::chrono::seconds kLongestLock(5);

bool IsOfName(char c) {
  return (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
         (c >= '0' && c <= '9') || c == '.' || c == '_' || c == '-';
}

Status CheckFolder(int fd, const std::string& path) {
  struct stat facts;
  if (::fstat(fd, &facts) != 0) {
    return Status::FromErrno(errno, "cannot stat the folder").Of(path);
  }
  if (facts.st_uid != ::geteuid()) {
    return Status(Code::kPermissionDenied,
                  fmt::format("folder of another user: expected user {}, "
                              "found {}",
                              ::geteuid(), facts.st_uid))
        .Of(path);
  }
  if ((facts.st_mode & 0077) != 0) {
    return Status(Code::kPermissionDenied,
                  fmt::format("folder is open to other users: expected mode "
                              "0700, found {:04o}",
                              facts.st_mode & 07777))
        .Of(path);
  }
  return Status();
}

// Locks the folder, by polling: a stopped process that holds the lock must not
// block this one.
Status Lock(int fd, int how, const std::string& path) {
  const auto end = std::chrono::steady_clock::now() + kLongestLock;
  while (::flock(fd, how | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK) {
      return Status::FromErrno(errno, "cannot lock the folder").Of(path);
    }
    if (std::chrono::steady_clock::now() > end) {
      return Status(Code::kTimeout, "folder is locked by another process")
          .Of(path);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return Status();
}

// Returns the process id in a file of a folder, if it is a file of that user.
std::optional<uint32_t> ReadPid(int folder, const std::string& name,
                                uint32_t user) {
  const UniqueFd file(::openat(folder, name.c_str(),
                               O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts;
  if (file.get() < 0 || ::fstat(file.get(), &facts) != 0 ||
      !S_ISREG(facts.st_mode) || facts.st_uid != user) {
    return std::nullopt;
  }
  std::array<char, 16> text;
  const ssize_t length = ::read(file.get(), text.data(), text.size());
  uint32_t pid = 0;
  if (length <= 0 ||
      std::from_chars(text.data(), text.data() + length, pid).ec !=
          std::errc()) {
    return std::nullopt;
  }
  return pid;
}

}  // namespace

std::optional<uint32_t> UserOf(uint32_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string name; in >> name;) {
    uint32_t real = 0;
    uint32_t effective = 0;
    if (name == "Uid:" && in >> real >> effective) return effective;
  }
  return std::nullopt;
}

Status CheckName(std::string_view name) {
  if (name.empty() || name.size() > kLongestName || name == "." ||
      name == ".." || !std::ranges::all_of(name, IsOfName)) {
    return Status(Code::kInvalidArgument,
                  fmt::format("not a name of a publication: expected 1 to {} "
                              "of A-Z, a-z, 0-9, '.', '_', '-', found {}",
                              kLongestName, Quote(name)));
  }
  return Status();
}

std::string NameFolder::UsualPath() {
  return fmt::format("/tmp/haulway-{}", ::geteuid());
}

Result<NameFolder> NameFolder::Open(Access access, std::string path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    return Status::FromErrno(errno, "cannot make the folder").Of(path);
  }
  UniqueFd fd(
      ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (fd.get() < 0) {
    if (errno == ENOTDIR || errno == ELOOP) {
      return Status(Code::kPermissionDenied,
                    "not a folder of this user: expected a folder, found a "
                    "link or a file")
          .Of(path);
    }
    return Status::FromErrno(errno, "cannot open the folder").Of(path);
  }
  HAULWAY_TRY(CheckFolder(fd.get(), path));
  HAULWAY_TRY(
      Lock(fd.get(), access == Access::kAlone ? LOCK_EX : LOCK_SH, path));
  return NameFolder(std::move(fd), std::move(path));
}

NameFolder::~NameFolder() {
  if (fd_.get() >= 0) (void)::flock(fd_.get(), LOCK_UN);
}

std::optional<uint32_t> NameFolder::Read(const std::string& name) const {
  return ReadPid(fd_.get(), name, ::geteuid());
}

bool NameFolder::IsOfAnotherUser(const std::string& name) {
  const std::unique_ptr<DIR, int (*)(DIR*)> all(::opendir("/tmp"), &::closedir);
  while (const dirent* entry =
             all == nullptr ? nullptr : ::readdir(all.get())) {
    constexpr std::string_view kPrefix = "haulway-";
    const std::string_view folder = entry->d_name;
    uint32_t user = 0;
    if (!folder.starts_with(kPrefix) ||
        std::from_chars(folder.data() + kPrefix.size(),
                        folder.data() + folder.size(), user)
                .ptr != folder.data() + folder.size() ||
        user == ::geteuid()) {
      continue;
    }
    const UniqueFd fd(::open(("/tmp/" + std::string(folder)).c_str(),
                             O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (fd.get() < 0) continue;
    const auto pid = ReadPid(fd.get(), name, user);
    if (pid.has_value() && UserOf(*pid) == user) return true;
  }
  return false;
}

Status NameFolder::Write(const std::string& name, uint32_t pid) const {
  // Create a new file: an existing one may be a link or have another mode.
  (void)::unlinkat(fd_.get(), name.c_str(), 0);
  const UniqueFd file(::openat(fd_.get(), name.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (file.get() < 0) {
    return Status::FromErrno(errno, "cannot make the file of a name")
        .Of(fmt::format("{}/{}", path_, name));
  }
  const std::string text = fmt::format("{}\n", pid);
  return WriteFully(file.get(), 0, {{std::as_bytes(std::span(text))}});
}

void NameFolder::Remove(const std::string& name) const {
  (void)::unlinkat(fd_.get(), name.c_str(), 0);
}

std::vector<std::string> NameFolder::names() const {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(path_.c_str()),
                                                   &::closedir);
  if (folder == nullptr) return names;
  while (const dirent* file = ::readdir(folder.get())) {
    if (CheckName(file->d_name).ok()) names.emplace_back(file->d_name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace haulway::publish
