#include "io/folder_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <utility>

#include "base/text.h"
#include "haulway/options.h"

namespace haulway {

namespace {

// A lock is held for some renames and a sync of the folder.
constexpr std::chrono::seconds kLongest(60);
constexpr int kAgainMs = 5;

}  // namespace

FolderLock::~FolderLock() {
  // A child that was forked meanwhile has the same lock.
  if (folder_.get() >= 0) ::flock(folder_.get(), LOCK_UN);
}

Result<FolderLock> FolderLock::Take(const std::string& folder) {
  FolderLock lock;
  UniqueFd fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() < 0) return lock;
  const auto end = std::chrono::steady_clock::now() + kLongest;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return lock;
    if (CancelScope::IsCancelled()) {
      return Status(Code::kCancelled, "waiting for another save was cancelled");
    }
    if (std::chrono::steady_clock::now() > end) {
      return Status(Code::kUnavailable,
                    fmt::format("another save into the folder {} has not ended "
                                "for a minute",
                                QuotePath(folder)));
    }
    (void)::poll(nullptr, 0, kAgainMs);
  }
  lock.folder_ = std::move(fd);
  return lock;
}

}  // namespace haulway
