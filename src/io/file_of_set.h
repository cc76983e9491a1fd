// A local file that becomes visible together with others.

#pragma once

#include <memory>
#include <string>

#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// A FileOfSet is never overwritten in place. Leftovers in its folder are not
// removed, and its folder is not synced: the caller does both, for all files.
class FileOfSet : public ByteSink {
 public:
  // The name that the file will have. Links were followed.
  virtual const std::string& path() const = 0;
  // Returns whether this name leads to the file that was written, after
  // Commit().
  virtual bool HasName() const = 0;
};

// Opens a file as OpenFileSink() does. Fails with kUnsupported too for what is
// no regular file.
Result<std::unique_ptr<FileOfSet>> OpenFileOfSet(
    std::string path, const FileSinkOptions& options);

}  // namespace haulway
