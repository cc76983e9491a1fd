// What an edit overwrites in place, kept beside the file meanwhile.

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

// Bytes of a file and those that take their place. Both are of one length.
struct Overwrite {
  uint64_t offset = 0;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
};

// A HeaderJournal is a file beside an edited one, ".NAME.haulway-header". It is
// there, complete and as durable as asked, before the first byte is overwritten
// and until the last one is.
//
// A file that is found like this was left by a process that ended in between.
// It is believed only if it belongs to this user or to the edited file's owner,
// and if every sector that it is about has the old or the new content.
class HeaderJournal {
 public:
  HeaderJournal(std::string path, Durability durability);

  Status Save(const Overwrite& overwrite) const;
  Status Remove() const;

  // Whether there is a file of the journal's name.
  bool exists() const;
  // Puts the old bytes back, if some but not all of the new ones were written,
  // and removes the journal. Fails as the system does. Requires: `file` is the
  // edited file.
  Status PutBack(EditableFile* file) const;

 private:
  // Nullopt for what is no journal, or not to be believed.
  Result<std::optional<Overwrite>> Read() const;

  const std::string path_;     // The edited file.
  const std::string journal_;  // The journal's path.
  const Durability durability_;
};

// PutBack() for the file at `path` if there is a journal of it: after this the
// file is a whole one. Fails as EditableFile::Open() and PutBack() do.
Status UndoInterruptedEdit(const std::string& path, Durability durability);

}  // namespace haulway::convert
