// The memory file of a publication, mapped in this process.

#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/posix.h"
#include "haulway/publish.h"
#include "haulway/status.h"
#include "publish/name_folder.h"
#include "publish/publication_layout.h"

namespace haulway::publish {

// Locks of an open file description, which end with the last process that holds
// the description. These functions never wait.
enum class Sharing { kShared, kAlone };
bool LockByte(int fd, int64_t byte, Sharing sharing);
void UnlockByte(int fd, int64_t byte);
// IsLockedAlone() returns whether another open file description has an
// exclusive lock; IsLocked(), whether one has any lock.
bool IsLockedAlone(int fd, int64_t byte);
bool IsLocked(int fd, int64_t byte);

// A range of the file, in bytes.
struct FileRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A PublicationFile is a memory file with its header mapped. It cannot shrink;
// memory is freed by punching holes.
class PublicationFile {
 public:
  // Creates a publication. Fails with kLimit if the system has too little
  // shared memory.
  static Result<std::shared_ptr<PublicationFile>> Create(std::string_view name);
  // Finds the publication of that name that some process of this user holds.
  // Process `likely_pid` is searched first. Fails with kNotFound, and with
  // kCorrupt if the memory file is not a publication of that name.
  static Result<std::shared_ptr<PublicationFile>> Find(std::string_view name,
                                                       uint32_t likely_pid,
                                                       bool writable);
  // Opens the file of `fd` again.
  static Result<std::shared_ptr<PublicationFile>> Open(int fd, bool writable);
  PublicationFile(const PublicationFile&) = delete;
  PublicationFile& operator=(const PublicationFile&) = delete;
  ~PublicationFile();

  int fd() const { return fd_.get(); }
  Header& header() const { return *header_; }
  Slot& slot(uint32_t i) const { return slots_[i]; }
  std::string name() const;
  uint64_t size() const;
  // Requires: this is not the publisher's object.
  bool has_publisher() const { return IsLockedAlone(fd(), kPublisherLock); }

  // Returns the range of a slot's message, or nullopt if the range is not
  // within the file. Requires: the slot is locked.
  std::optional<FileRange> MessageOf(uint32_t slot) const;
  // Frees the memory of a slot. Requires: writable, and an exclusive lock on
  // the slot.
  void Empty(uint32_t slot) const;
  // Returns whether a version is neither the newest nor among those kept beside
  // it.
  bool IsRetired(uint64_t version) const {
    return version + header_->keep.load() <= VersionOf(header_->newest.load());
  }
  // Frees the memory of retired versions that no process holds. `leaves_spare`:
  // keep one for the publisher to write to next. Any process may call this.
  // Requires: writable.
  void Trim(bool leaves_spare) const;

  // Closes the descriptor. Its locks stay with other processes that share it.
  void Close() { fd_ = UniqueFd(); }

 private:
  PublicationFile(UniqueFd fd, void* header);
  static Result<std::shared_ptr<PublicationFile>> Map(UniqueFd fd,
                                                      bool writable);

  UniqueFd fd_;
  Header* header_;
  Slot* slots_;
};

// Removes the names of dead publishers whose memory no process holds, except
// `but`, and returns them: when a publisher is killed its memory is freed, but
// its name stays. Requires: an exclusive lock on the folder.
std::vector<std::string> RemoveDeadNames(const NameFolder& folder,
                                         std::string_view but);

// Opens the same file with a new open file description.
Result<UniqueFd> Reopen(int fd, bool writable);

}  // namespace haulway::publish
