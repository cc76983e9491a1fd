#include "io/temporary_file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "base/posix.h"
#include "io/file_system.h"

namespace haulway {

namespace {

constexpr std::string_view kSuffix = ".haulway-tmp";
// Leaves room for the parts that TemporaryName() adds, in a name of 255 bytes.
constexpr size_t kLongestStem = 200;
constexpr time_t kDay = 24 * 60 * 60;
// Within this time all files of a set get their names.
constexpr time_t kLongestRename = 60;

// Returns how the names of this path's temporaries begin: ".NAME.".
std::string PrefixOf(const std::string& path) {
  return fmt::format(".{}.",
                     path.substr(path.rfind('/') + 1).substr(0, kLongestStem));
}

// Calls `visit` with the open folder of `path` and each temporary in it, until
// it returns false.
template <class Visit>
void VisitTemporaries(const std::string& path, const Visit& visit) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(
      ::opendir(FolderOfPath(path).c_str()), &::closedir);
  if (folder == nullptr) return;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (!IsTemporary(entry->d_name)) continue;
    if (!visit(::dirfd(folder.get()), entry->d_name)) return;
  }
}

// Returns whether the name is still that of the file. Its owner may have
// removed it before it was locked, and another have taken the name. While it is
// locked, nobody else removes it.
bool StillNames(int folder, const char* name, const struct stat& file) {
  struct stat named;
  return ::fstatat(folder, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
         named.st_dev == file.st_dev && named.st_ino == file.st_ino;
}

}  // namespace

bool IsTemporary(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);
  if (!name.starts_with('.') || !name.ends_with(kSuffix)) return false;
  name.remove_suffix(kSuffix.size());
  const size_t dot = name.rfind('.');
  const size_t dash = name.rfind('-');
  const auto is_number = [](std::string_view text) {
    return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
  };
  return dot != 0 && dot != name.npos && dash != name.npos && dash > dot &&
         is_number(name.substr(dot + 1, dash - dot - 1)) &&
         is_number(name.substr(dash + 1));
}

std::string FolderOfPath(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == path.npos ? "." : path.substr(0, slash + 1);
}

std::string TemporaryName(const std::string& path, int number) {
  return fmt::format("{}/{}{}-{}{}", FolderOfPath(path), PrefixOf(path),
                     ::getpid(), number, kSuffix);
}

bool LockTemporary(int fd) {
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return false;
  }
  struct stat made;
  return ::fstat(fd, &made) != 0 || made.st_nlink != 0;
}

void SweepTemporaries(const std::string& path) {
  const std::string own = PrefixOf(path);
  VisitTemporaries(path, [&](int folder, const char* name) {
    // O_NONBLOCK: do not wait for a pipe of that name.
    const UniqueFd fd(
        ::openat(folder, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    struct stat facts;
    if (fd.get() < 0 && errno == ELOOP &&
        ::fstatat(folder, name, &facts, AT_SYMLINK_NOFOLLOW) == 0 &&
        facts.st_uid == ::geteuid() &&
        ::time(nullptr) - facts.st_ctime > kLongestRename) {
      ::unlinkat(folder, name, 0);  // A link, which cannot be locked.
    }
    if (fd.get() < 0 || ::fstat(fd.get(), &facts) != 0 ||
        !S_ISREG(facts.st_mode) || facts.st_uid != ::geteuid()) {
      return true;
    }
    const bool is_recent = ::time(nullptr) - facts.st_mtime < kDay;
    if (is_recent && !std::string_view(name).starts_with(own) &&
        FileSystemOf(folder).remote) {
      return true;
    }
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) == 0 &&
        StillNames(folder, name, facts)) {
      ::unlinkat(folder, name, 0);
    }
    return true;
  });
}

std::string FindTemporary(const std::string& path) {
  const std::string own = path.ends_with('/') ? "." : PrefixOf(path);
  std::string found;
  VisitTemporaries(path, [&](int, const char* name) {
    if (std::string_view(name).starts_with(own)) found = name;
    return found.empty();
  });
  return found;
}

std::string TemporaryFolder() {
  const char* const folder = ::secure_getenv("TMPDIR");
  return folder == nullptr || *folder == '\0' ? P_tmpdir : folder;
}

}  // namespace haulway
