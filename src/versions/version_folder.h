// Writes the folder of a version, so that it appears whole, and removes
// versions.

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
// written, so the index must be last. Without Commit(), the files that this
// object wrote are removed again.
//
// Several processes may write one folder: one makes it and commits it, others
// join it and write files of other names.
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
  // `place`: place() of the folder that another process made.
  static Result<std::unique_ptr<NewFolder>> Join(std::string_view path,
                                                 std::string_view place,
                                                 const Options& options);
  virtual ~NewFolder() = default;

  // Where the files are now.
  virtual std::string place() const = 0;
  // Opens a file of the folder for writing. Below an s3:// name, the sink fails
  // with kInvalidArgument if there is such a file: another writer's.
  virtual Result<std::unique_ptr<ByteSink>> OpenFile(
      const std::string& name) = 0;
  // Gives the folder its name. Fails with kInvalidArgument if the name was
  // taken meanwhile, and with kUnavailable if another writer removed or
  // replaced files below an s3:// name; then, and after any other failure, it
  // is not there. If the folder was joined, this says that the other process
  // did so. The second call does nothing.
  virtual Status Commit() = 0;
};

// Removes what processes that were killed left in the local folder `root`:
// folders that were not committed, and versions that were being removed.
void SweepVersionFolders(const std::string& root);

// Removes a version. A local one disappears in one step; of one below an s3://
// name the index is removed first. Fails as the system and requests do.
Status RemoveVersionFolder(const std::string& path,
                           const RemoteOptions& remote);

}  // namespace haulway
