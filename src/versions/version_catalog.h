// Finds versions of a run without reading all of them.

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/delta.h"
#include "haulway/open.h"
#include "haulway/status.h"
#include "versions/version_folders.h"

namespace haulway {

// A VersionCatalog lists a run once, and reads versions when they are asked
// for. Not for several threads.
class VersionCatalog {
 public:
  // Fails as FindVersionFolders() does.
  static Result<VersionCatalog> Open(std::string_view uri,
                                     const SourceOptions& options);

  // Returns the version that is called `name`, an id or a number; null if there
  // is none. An incomplete one is returned only if no other has that name.
  Result<const WeightVersion*> Find(std::string_view name);
  // Returns the newest complete version, null if there is none.
  Result<const WeightVersion*> Newest();

  // How versions are opened.
  const SourceOptions& options() const { return options_; }

 private:
  struct Row {
    VersionFolder folder;
    std::string number;  // At the end of the folder's name.
    std::optional<WeightVersion> version = std::nullopt;
  };

  Result<const WeightVersion*> Read(Row* row);

  SourceOptions options_;
  std::vector<Row> rows_;  // The largest number first.
};

// Opens the index and the shards of a version. Fails as that does, and names
// the file.
Status CheckFiles(const WeightVersion& version, const SourceOptions& options);

// Returns whether `name`, an id or a number, means the version `id`.
bool IsVersionNamed(std::string_view id, std::string_view name);

// Returns the versions that lead to `to`, the first to be applied first: deltas
// on version `from` or, if the chain does not come from there, a full version
// and deltas, or deltas on a version that is not in the run. `from` is empty
// for a target that holds none. Fails with kCorrupt if the versions build on
// one another in a circle, and as opening does for a version that is not
// complete.
Result<std::vector<WeightVersion>> FindChain(VersionCatalog* catalog,
                                             std::string_view from,
                                             const WeightVersion& to);

}  // namespace haulway
