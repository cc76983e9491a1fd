// A Spool keeps written data until it is read back, in an unnamed temporary
// file. For data that lies in another file, only the location is kept.
//
// Threads: several writes may run at once; reads only after all writes.

#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <span>
#include <utility>

#include "base/posix.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

class Spool {
 public:
  // Creates the temporary file in the folder named by TMPDIR, or in /tmp. Call
  // first, once.
  Status Open();

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts);
  // Records that `length` bytes at `offset` are those of `from`, which are read
  // in ReadAt(). `from` may be closed afterwards. Fails with kUnsupported if
  // the file cannot be opened again.
  Status ShareAt(uint64_t offset, const FileBytes& from, uint64_t length);
  // Sets the size. Requires: nothing was written past `size`. Bytes before
  // `size` that were not written are zero.
  Status End(uint64_t size);
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  struct Shared {
    uint64_t end;
    FileBytes from;
  };

  UniqueFd own_;
  std::mutex mutex_;                   // For writes.
  std::map<uint64_t, Shared> shared_;  // By offset.
  std::map<std::pair<dev_t, ino_t>, UniqueFd> files_;
};

}  // namespace haulway
