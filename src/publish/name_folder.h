// The folder with the names of publications: a small file for each, which holds
// the process id of the publisher.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway::publish {

// Fails with kInvalidArgument unless `name` is 1 to 100 characters from A-Z,
// a-z, 0-9, ".", "_" and "-", and neither "." nor "..".
Status CheckName(std::string_view name);

// Returns the effective user of a process, or nullopt if it is gone or hidden.
std::optional<uint32_t> UserOf(uint32_t pid);

// A NameFolder is the folder /tmp/haulway-UID, locked.
//
// Publishing and sweeping take the exclusive lock, attaching takes a shared
// lock. So a process that attaches has either finished, and is found among the
// processes that hold the memory, or has not begun.
//
// The file of a name is only a hint where to look first: memory can also be
// found without the file, by searching all processes.
class NameFolder {
 public:
  enum class Access { kShared, kAlone };
  // Opens and locks the folder; creates it with mode 0700 if missing. Fails
  // with kPermissionDenied if the folder is a link, belongs to another user or
  // is open to others, and with kTimeout if it stays locked for five seconds.
  static Result<NameFolder> Open(Access access, std::string path = UsualPath());
  // Ignores TMPDIR: all processes of a user must find the same folder.
  static std::string UsualPath();

  NameFolder(NameFolder&&) = default;
  NameFolder& operator=(NameFolder&&) = delete;
  ~NameFolder();  // Also unlocks for children forked meanwhile.

  // Returns the process id in the file, or nullopt if the file is missing,
  // invalid or another user's.
  std::optional<uint32_t> Read(const std::string& name) const;
  // Requires: the lock is exclusive.
  Status Write(const std::string& name, uint32_t pid) const;
  void Remove(const std::string& name) const;
  std::vector<std::string> names() const;
  // Returns whether a process of another user publishes under the name. Only
  // root may know.
  static bool IsOfAnotherUser(const std::string& name);

 private:
  explicit NameFolder(UniqueFd fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;  // Holds the lock.
  std::string path_;
};

}  // namespace haulway::publish
