// Which file system holds a file.

#pragma once

#include <string>

namespace haulway {

struct FileSystem {
  std::string name;     // As mount(8) spells it, or a number; "" if unknown.
  bool remote = false;  // Its bytes may come over a network, or from a program.
};

FileSystem FileSystemOf(int fd);

}  // namespace haulway
