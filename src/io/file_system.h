// Which file system holds a file.

#pragma once

#include <string>

namespace haulway {

struct FileSystem {
  std::string name;     // As mount(8) spells it, or a number; "" if unknown.
  bool remote = false;  // Its bytes may come over a network, or from a program.
  // Leases (fcntl(2), F_SETLEASE) are asked before anyone changes a file.
  bool leases = false;
};

FileSystem FileSystemOf(int fd);

}  // namespace haulway
