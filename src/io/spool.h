// A Spool keeps what is written until it is read back, in a temporary file
// without a name; of what lies in another file it keeps only where.
//
// Threads: writes may be many at once; reads, when all of them are done.

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
  // In the folder that TMPDIR names, else in /tmp. Once, before all else.
  Status Open();

  Status WriteAt(uint64_t offset,
                 std::span<const std::span<const std::byte>> parts);
  // `from` may be closed after it, and is read when this is. kUnsupported if
  // it cannot be opened anew.
  Status ShareAt(uint64_t offset, const FileBytes& from, uint64_t length);
  // Nothing was written behind `size`; what is before and was not is zero.
  Status End(uint64_t size);
  Status ReadAt(uint64_t offset, std::span<std::byte> out) const;

 private:
  struct Shared {
    uint64_t end;
    FileBytes from;
  };

  UniqueFd own_;
  std::mutex mutex_;                   // While it is written.
  std::map<uint64_t, Shared> shared_;  // By where they begin.
  std::map<std::pair<dev_t, ino_t>, UniqueFd> files_;
};

}  // namespace haulway
