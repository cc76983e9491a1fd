// A lock on a folder, for sets of files in it.

#pragma once

#include <string>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway {

// A FolderLock holds a lock (flock) on the folder itself, so that no file is
// made and none can stay. It excludes others on this machine only if the folder
// is on a network file system.
class FolderLock {
 public:
  FolderLock() = default;
  FolderLock(FolderLock&&) = default;
  ~FolderLock();

  // Waits until nobody else has the lock. Fails with kUnavailable after a
  // minute, and with kCancelled. If the folder cannot be read, or its file
  // system has no locks, nothing is locked.
  static Result<FolderLock> Take(const std::string& folder);

 private:
  UniqueFd folder_;
};

}  // namespace haulway
