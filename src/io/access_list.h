// Access control lists of files (acl(5)), which name users and groups beside
// the owner, the group and all others.

#pragma once

#include <sys/stat.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace haulway {

// An AccessList is the list of a file as the kernel stores it.
class AccessList {
 public:
  AccessList() = default;
  explicit AccessList(std::vector<std::byte> bytes)
      : bytes_(std::move(bytes)) {}

  // False if the mode says everything.
  bool has_entries() const { return !bytes_.empty(); }
  const std::vector<std::byte>& bytes() const { return bytes_; }
  // Returns what the list allows the file's own group, as bits of a mode (none
  // if the list cannot be read). The mode of the file itself has the largest
  // permission of all groups and named users in these bits.
  mode_t group_bits() const;

 private:
  std::vector<std::byte> bytes_;
};

// Returns the list of a file; without entries if it has none.
AccessList AccessListOf(const std::string& path);

// Gives an open file this list, or removes the one that it inherited from its
// folder if `list` has no entries. Returns whether the file has the list now.
bool SetAccessList(int fd, const AccessList& list);

}  // namespace haulway
