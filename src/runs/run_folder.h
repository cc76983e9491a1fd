// The files of a run, listed once.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

struct RunFile {
  std::string name;  // Below the root: "step-3/model.pt".
  uint64_t bytes = 0;
  uint64_t inode = 0;  // Only if the run is local.
  bool is_folder = false;
  bool is_link = false;   // `bytes` and `is_folder` are of what it leads to.
  bool is_other = false;  // A pipe, a link that leads nowhere.

  friend bool operator==(const RunFile&, const RunFile&) = default;
};

// A RunFolder is a listing of a local folder or of what is below an s3:// name.
// Hidden folders of the root are listed without their content. Links to folders
// are followed in the root only.
class RunFolder {
 public:
  // A folder that does not exist is empty. Fails with kUnsupported for a URL
  // that cannot be listed, and as listing does.
  static Result<RunFolder> List(std::string_view uri,
                                const RemoteOptions& remote);

  // Makes the listing of a store that `open` reads, which gets the names below
  // the root. Requires: `root` ends in '/', and `open` outlives the result.
  using OpenFile = std::function<Result<std::shared_ptr<const ByteSource>>(
      std::string_view)>;
  static RunFolder Of(std::string root, std::vector<RunFile> files,
                      OpenFile open);

  // Ends in '/'.
  const std::string& root() const { return root_; }
  bool is_local() const { return is_local_; }
  const RemoteOptions& remote() const { return remote_; }

  // Sorted by name. Folders are there only if the run is local.
  std::span<const RunFile> files() const { return files_; }
  // Returns what is below a folder.
  std::span<const RunFile> Below(std::string_view folder) const;
  // Returns null if there is none.
  const RunFile* Find(std::string_view name) const;
  // Returns the names of what is in the root or, with `folder` ("checkpoints"),
  // in a folder of it; each once, with that folder.
  std::vector<std::string> Children(std::string_view folder = {}) const;
  // Returns whether a name is of a folder.
  bool IsFolder(std::string_view name) const;

  std::string PathOf(std::string_view name) const;
  Result<std::shared_ptr<const ByteSource>> Open(std::string_view name) const;
  // Returns the bytes of a file. Fails with kLimit if there are more than
  // `most`.
  Result<std::string> Read(std::string_view name, uint64_t most) const;

 private:
  Status ListLocal(const std::string& below, bool into_links);

  std::string root_;
  bool is_local_ = true;
  RemoteOptions remote_;
  OpenFile open_;  // Empty: as the name of the root says.
  std::vector<RunFile> files_;
};

}  // namespace haulway
