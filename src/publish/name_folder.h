// The folder in which the names of publications are: a small file for each,
// with the id of its publisher.

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "haulway/status.h"

namespace haulway::publish {

// kInvalidArgument unless it is 1 to 100 of A-Z, a-z, 0-9, ".", "_", "-", and
// neither "." nor "..".
Status CheckName(std::string_view name);

// A NameFolder is /tmp/haulway-UID, locked.
//
// Who publishes or sweeps has the lock alone, who attaches shares it. So
// whoever attaches is either done, and is found among those that hold the
// memory, or has not begun.
//
// A name's file says where to look first, and no more: memory is found without
// it, too, by looking at all processes.
class NameFolder {
 public:
  enum class Access { kShared, kAlone };
  // Makes the folder, of mode 0700, where there is none. kPermissionDenied if
  // it is a link, another user's or open to others; kTimeout if it stays
  // locked for five seconds.
  static Result<NameFolder> Open(Access access, std::string path = UsualPath());
  // Not where TMPDIR says: processes of one user must find one another.
  static std::string UsualPath();

  NameFolder(NameFolder&&) = default;
  NameFolder& operator=(NameFolder&&) = delete;
  ~NameFolder();  // Unlocks it, for children that were forked meanwhile, too.

  // The process id in the file; nullopt if there is no such file of this user,
  // or nothing of use in it.
  std::optional<uint32_t> Read(const std::string& name) const;
  // Requires: the folder is locked for this process alone.
  Status Write(const std::string& name, uint32_t pid) const;
  void Remove(const std::string& name) const;
  std::vector<std::string> names() const;

 private:
  explicit NameFolder(UniqueFd fd, std::string path)
      : fd_(std::move(fd)), path_(std::move(path)) {}

  UniqueFd fd_;  // With the lock.
  std::string path_;
};

}  // namespace haulway::publish
