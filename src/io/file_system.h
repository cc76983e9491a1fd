// Identifies the file system of a file.

#pragma once

#include <string>

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

}  // namespace haulway
