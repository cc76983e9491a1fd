// Writes the folder of a version, so that it appears whole.

#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "haulway/open.h"
#include "haulway/sink.h"
#include "haulway/status.h"

namespace haulway {

// A NewFolder is the folder of a version that is being written. A local one has
// a hidden name beside its own until Commit(); without Commit() it is removed.
// Below an s3:// name there is no such step: files are there when they are
// written, so the index must be last.
class NewFolder {
 public:
  struct Options {
    Durability durability = Durability::kFull;
    RemoteOptions remote{};
  };

  // Fails with kInvalidArgument if `path` exists, with kUnsupported for a URL
  // that cannot be written to, and as the system does.
  static Result<std::unique_ptr<NewFolder>> Make(std::string_view path,
                                                 const Options& options);
  virtual ~NewFolder() = default;

  // Opens a file of the folder for writing.
  virtual Result<std::unique_ptr<ByteSink>> OpenFile(
      const std::string& name) = 0;
  // Gives the folder its name. Fails with kInvalidArgument if the name was
  // taken meanwhile.
  virtual Status Commit() = 0;
};

}  // namespace haulway
