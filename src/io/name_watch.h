// Notices that a name leads to another file.

#pragma once

#include <sys/stat.h>

#include <string>

#include "haulway/source.h"

namespace haulway {

// A NameWatch remembers a file when it is made. If the file opens others, as an
// index does, and is still called so when they are open, all are of one save: a
// save takes this name away before it replaces the others (haulway/file_set.h).
class NameWatch {
 public:
  // Watches the name of a local source; of another source, nothing.
  explicit NameWatch(const ByteSource& source);

  // Returns false if the name now leads to no file, to another one, or to one
  // that had lost the name meanwhile.
  bool IsSame() const;

 private:
  const std::string path_;
  bool is_local_ = false;
  struct stat first_;
};

}  // namespace haulway
