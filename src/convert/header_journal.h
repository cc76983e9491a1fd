// A journal of the bytes that an edit overwrites in place.

#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "haulway/sink.h"
#include "haulway/status.h"
#include "io/editable_file.h"

namespace haulway::convert {

// A range of a file before and after an edit. Both have the same length.
struct Overwrite {
  uint64_t offset = 0;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
};

// A HeaderJournal is a file next to the edited one, ".NAME.haulway-header". It
// exists, complete and with the requested durability, from before the first
// byte is overwritten until the last one is.
//
// A journal found later was left by a process that died in between. It is
// trusted only if it belongs to this user or to the edited file's owner, and if
// every sector it covers has the old or the new content.
class HeaderJournal {
 public:
  HeaderJournal(std::string path, Durability durability);

  Status Save(const Overwrite& overwrite) const;
  Status Remove() const;

  // Returns whether a file with the journal's name exists.
  bool exists() const;
  // Restores the old bytes if some but not all of the new ones were written,
  // and removes the journal. Fails as the system calls do. Requires: `file` is
  // the edited file.
  Status PutBack(EditableFile* file) const;

 private:
  // Returns nullopt if the file is not a journal, or not to be trusted.
  Result<std::optional<Overwrite>> Read() const;

  const std::string path_;     // The edited file.
  const std::string journal_;  // The journal's path.
  const Durability durability_;
};

// Calls PutBack() for the file at `path` if it has a journal. Afterwards the
// file is consistent. Fails as EditableFile::Open() and PutBack() do.
Status UndoInterruptedEdit(const std::string& path, Durability durability);

}  // namespace haulway::convert
