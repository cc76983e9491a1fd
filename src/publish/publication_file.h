// The memory file of a publication, mapped in one process.

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

// Locks of an open file description: they end with the last process that has
// it. Never wait.
enum class Sharing { kShared, kAlone };
bool LockByte(int fd, int64_t byte, Sharing sharing);
void UnlockByte(int fd, int64_t byte);
// Whether some other open file has it locked, and not only shared.
bool IsLockedAlone(int fd, int64_t byte);
bool IsLocked(int fd, int64_t byte);

// Bytes of the file, page by page.
struct FileRange {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// A PublicationFile is a memory file with the header mapped. It cannot shrink;
// its memory is given back in holes.
class PublicationFile {
 public:
  // Makes one; kLimit if the system has no memory to share.
  static Result<std::shared_ptr<PublicationFile>> Create(std::string_view name);
  // Finds what some process of this user holds; `likely_pid` is asked first.
  // kNotFound; kCorrupt if it is no publication of the name.
  static Result<std::shared_ptr<PublicationFile>> Find(std::string_view name,
                                                       uint32_t likely_pid,
                                                       bool writable);
  // Opens the same file anew, given a descriptor of it.
  static Result<std::shared_ptr<PublicationFile>> Open(int fd, bool writable);
  PublicationFile(const PublicationFile&) = delete;
  PublicationFile& operator=(const PublicationFile&) = delete;
  ~PublicationFile();

  int fd() const { return fd_.get(); }
  Header& header() const { return *header_; }
  Slot& slot(uint32_t i) const { return slots_[i]; }
  std::string name() const;
  uint64_t size() const;
  // Requires: this is not the publisher's.
  bool has_publisher() const { return IsLockedAlone(fd(), kPublisherLock); }

  // Where the message of a slot lies; nullopt if that is not in the file.
  // Requires: the slot is locked.
  std::optional<FileRange> MessageOf(uint32_t slot) const;
  // Gives the memory of a slot back. Requires: writable, and the slot is
  // locked alone.
  void Empty(uint32_t slot) const;
  // Whether a version is neither the newest nor kept beside it.
  bool IsRetired(uint64_t version) const {
    return version + header_->keep.load() <= VersionOf(header_->newest.load());
  }
  // Gives back the memory of retired versions that nobody holds, but for one if
  // a publisher will write to it next. Any process may. Requires: writable.
  void Trim(bool leaves_spare) const;

  // Gives up the descriptor, and its locks, to other processes that share it.
  void Close() { fd_ = UniqueFd(); }

 private:
  PublicationFile(UniqueFd fd, void* header);
  static Result<std::shared_ptr<PublicationFile>> Map(UniqueFd fd,
                                                      bool writable);

  UniqueFd fd_;
  Header* header_;
  Slot* slots_;
};

// Memory of publishers that were killed goes with them; their names stay.
// Removes those whose memory nobody holds, all but one, and returns them.
// Requires: the folder is locked for this process alone.
std::vector<std::string> RemoveDeadNames(const NameFolder& folder,
                                         std::string_view but);

// The same file by a new open file description.
Result<UniqueFd> Reopen(int fd, bool writable);

}  // namespace haulway::publish
