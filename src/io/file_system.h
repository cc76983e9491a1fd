// Identifies files and their file systems, follows links, and syncs folders.

#pragma once

#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway {

struct FileSystem {
  std::string name;  // As mount(8) spells it, or a number; "" if unknown.
  // Whether bytes may come over a network or from a program.
  bool remote = false;
  // Whether read leases (fcntl(2), F_SETLEASE) are broken before a file
  // changes.
  bool leases = false;
};

FileSystem FileSystemOf(int fd);

// Returns whether flock(2) failed with `error` because the file system has no
// locks, as NFS, or Lustre without its option, may have none.
bool HasNoLocks(int error);

// Where a path leads.
struct FinalName {
  std::string path;
  // False for an open file without a name, which only `path` leads to.
  bool has_name = true;
};

// Follows symbolic links from `path`, including a last one whose target does
// not exist yet. Fails with kIoError for circular links.
Result<FinalName> FollowLinks(std::string path);

// Returns whether a file is named by the digest of its content, 40 or 64
// hexadecimal digits, as in the caches of huggingface_hub and Git LFS. Such a
// file must not change: other links lead to it.
bool IsNamedByHash(std::string_view path);

// Returns whether both names lead to one file or folder, which exists.
bool IsSameFile(const std::string& a, const std::string& b);

// Syncs the entries of a folder. If the folder cannot be read, syncs the whole
// file system of `file`, an open file in the folder; without one, all file
// systems. File systems that cannot sync folders are left alone. Fails with the
// error of the system, which names the folder.
Status SyncFolder(const std::string& folder, int file = -1);

}  // namespace haulway
