#include "io/access_list.h"

#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/xattr.h>

#include <cerrno>
#include <cstring>

namespace haulway {

namespace {

constexpr const char* kName = "system.posix_acl_access";

}  // namespace

mode_t AccessList::group_bits() const {
  mode_t group = 0;
  mode_t mask = 7;
  posix_acl_xattr_entry entry;
  for (size_t at = sizeof(posix_acl_xattr_header);
       at + sizeof(entry) <= bytes_.size(); at += sizeof(entry)) {
    std::memcpy(&entry, bytes_.data() + at, sizeof(entry));
    if (entry.e_tag == ACL_GROUP_OBJ) group = entry.e_perm;
    if (entry.e_tag == ACL_MASK) mask = entry.e_perm;
  }
  return (group & mask & 7) << 3;
}

AccessList AccessListOf(const std::string& path) {
  // The list may grow between the two calls.
  for (int attempt = 0; attempt < 3; ++attempt) {
    const ssize_t size = ::getxattr(path.c_str(), kName, nullptr, 0);
    if (size <= 0) return AccessList();
    std::vector<std::byte> bytes(static_cast<size_t>(size));
    const ssize_t read =
        ::getxattr(path.c_str(), kName, bytes.data(), bytes.size());
    if (read >= 0) {
      bytes.resize(static_cast<size_t>(read));
      return AccessList(std::move(bytes));
    }
    if (errno != ERANGE) break;
  }
  return AccessList();
}

bool SetAccessList(int fd, const AccessList& list) {
  if (list.has_entries()) {
    return ::fsetxattr(fd, kName, list.bytes().data(), list.bytes().size(),
                       0) == 0;
  }
  return ::fremovexattr(fd, kName) == 0 || errno == ENODATA ||
         errno == EOPNOTSUPP;
}

}  // namespace haulway
