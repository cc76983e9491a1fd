#include "io/file_system.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <utility>

#include "base/posix.h"
#include "base/text.h"
#include "haulway/source.h"

namespace haulway {

namespace {

struct KnownSystem {
  uint32_t magic;  // From statfs(2) and linux/magic.h.
  const char* name;
  bool remote;
  bool leases = false;  // Tested on ext4, tmpfs and overlay.
};

constexpr KnownSystem kKnown[] = {
    {0x0000ef53, "ext4", false, true},  {0x58465342, "xfs", false, true},
    {0x9123683e, "btrfs", false, true}, {0x01021994, "tmpfs", false, true},
    {0x858458f6, "ramfs", false},       {0x794c7630, "overlay", false, true},
    {0x2fc12fc1, "zfs", false},         {0xf2f52010, "f2fs", false, true},
    {0xca451a4e, "bcachefs", false},    {0x73717368, "squashfs", false},
    {0xe0f5e1e2, "erofs", false},       {0x00004d44, "vfat", false},
    {0x2011bab0, "exfat", false},       {0x5346544e, "ntfs", false},
    {0x7366746e, "ntfs3", false},       {0x958458f6, "hugetlbfs", false},
    {0x00006969, "nfs", true},          {0x65735546, "fuse", true},
    {0x01021997, "9p", true},           {0xff534d42, "cifs", true},
    {0xfe534d42, "smb2", true},         {0x0000517b, "smb", true},
    {0x0bd00bd0, "lustre", true},       {0x00c36400, "ceph", true},
    {0x47504653, "gpfs", true},         {0x19830326, "beegfs", true},
    {0x5346414f, "afs", true},          {0x6b414653, "kafs", true},
    {0x786f4256, "vboxsf", true},       {0xaad7aaea, "panfs", true},
    {0x20030528, "orangefs", true},     {0x01161970, "gfs2", true},
    {0x7461636f, "ocfs2", true},
};

// Returns whether `link`, whose text is `text`, is a link of /proc to an open
// file that has no such name: "pipe:[7]", "model.pt (deleted)".
bool LeadsToNameless(const std::string& link, const std::string& text) {
  const UniqueFd fd(::open(link.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC));
  struct statfs facts;
  struct stat file;
  if (fd.get() < 0 || ::fstatfs(fd.get(), &facts) != 0 ||
      facts.f_type != PROC_SUPER_MAGIC || ::stat(link.c_str(), &file) != 0) {
    return false;
  }
  struct stat named;
  return ::stat(text.c_str(), &named) != 0 || named.st_dev != file.st_dev ||
         named.st_ino != file.st_ino;
}

FileSystem Known(const struct statfs& facts) {
  const auto magic = static_cast<uint32_t>(facts.f_type);
  for (const KnownSystem& known : kKnown) {
    if (known.magic == magic) return {known.name, known.remote, known.leases};
  }
  return {fmt::format("{:#x}", magic), false, false};
}

}  // namespace

FileSystem FileSystemOf(int fd) {
  struct statfs facts;
  if (RetryInterrupted([&] { return ::fstatfs(fd, &facts); }) != 0) return {};
  return Known(facts);
}

bool IsOnRemoteFileSystem(const std::string& path) {
  struct statfs facts;
  return RetryInterrupted([&] { return ::statfs(path.c_str(), &facts); }) ==
             0 &&
         Known(facts).remote;
}

bool HasNoLocks(int error) {
  return error == ENOLCK || error == EOPNOTSUPP || error == ENOSYS;
}

Result<FinalName> FollowLinks(std::string path) {
  constexpr int kMostLinks = 40;  // The limit of Linux.
  const std::string first = path;
  for (int i = 0; i <= kMostLinks; ++i) {
    std::array<char, 4096> link;
    const ssize_t length = ::readlink(path.c_str(), link.data(), link.size());
    if (length <= 0 || static_cast<size_t>(length) == link.size()) {
      return FinalName{std::move(path)};
    }
    std::string next(link.data(), static_cast<size_t>(length));
    const size_t slash = path.rfind('/');
    if (next.front() != '/' && slash != std::string::npos) {
      next = path.substr(0, slash + 1) + next;
    }
    if (LeadsToNameless(path, next)) {
      return FinalName{std::move(path), /*has_name=*/false};
    }
    path = std::move(next);
  }
  return Status::FromErrno(ELOOP,
                           fmt::format("cannot follow {}", Quote(first)));
}

bool IsNamedByHash(std::string_view path) {
  const std::string_view name = path.substr(path.rfind('/') + 1);
  return (name.size() == 40 || name.size() == 64) &&
         name.find_first_not_of("0123456789abcdef") == name.npos;
}

bool IsSameFile(const std::string& a, const std::string& b) {
  struct stat first;
  struct stat second;
  return ::stat(a.c_str(), &first) == 0 && ::stat(b.c_str(), &second) == 0 &&
         first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

Status SyncFolder(const std::string& folder, int file) {
  const auto failed = [&] {
    return Status::FromErrno(
        errno, fmt::format("cannot sync the folder {}", QuotePath(folder)));
  };
  int fd = -1;
  do {
    fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  } while (fd < 0 && errno == EINTR);
  const UniqueFd opened(fd);
  if (fd < 0 && errno == EACCES) {
    if (file < 0) {
      ::sync();
    } else if (::syncfs(file) != 0) {
      return failed();
    }
    return Status();
  }
  if (fd < 0) return failed();
  int result = 0;
  do {
    result = ::fsync(fd);
  } while (result != 0 && errno == EINTR);
  // EINVAL: the file system cannot sync folders.
  return result == 0 || errno == EINVAL ? Status() : failed();
}

}  // namespace haulway
