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
  // The hidden name that it has between Prepare() and Commit().
  virtual const std::string& temporary() const = 0;
};

// Returns whether a path leads to an open file.
bool LeadsTo(const std::string& path, int fd);

// Opens a file as OpenFileSink() does. Fails with kUnsupported too for what is
// no regular file.
Result<std::unique_ptr<FileOfSet>> OpenFileOfSet(
    std::string path, const FileSinkOptions& options);

// Opens a complete file that another process wrote and prepared: it can only be
// committed. It is not removed if that does not happen.
Result<std::unique_ptr<FileOfSet>> OpenWrittenFile(std::string path,
                                                   std::string temporary);

}  // namespace haulway
