// Design: what is left can be opened at any time, also after a kill. Versions
// build on older ones, so the newest of those to remove goes first; and each
// goes in one step, or its index first.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "base/no_memory.h"
#include "delta/version_facts.h"
#include "haulway/delta.h"
#include "haulway/folder.h"
#include "haulway/version_publisher.h"
#include "versions/version_folder.h"

namespace haulway {

namespace {

// Returns the row of the version on which another one builds.
std::optional<size_t> BaseOf(const std::vector<WeightVersion>& versions,
                             size_t row) {
  if (versions[row].kind != "delta") return std::nullopt;
  for (size_t i = 0; i < versions.size(); ++i) {
    if (i != row && delta::IsSameVersion(versions[i].id, versions[row].base)) {
      return i;
    }
  }
  return std::nullopt;
}

// Returns whether the local folder is a link to another one, which is not ours
// to remove.
bool IsLink(const std::string& path) {
  std::error_code error;
  return LocalPath(path).has_value() &&
         std::filesystem::is_symlink(path, error);
}

// Returns which versions stay.
std::vector<bool> Kept(const std::vector<WeightVersion>& versions,
                       uint64_t keep) {
  std::vector<bool> stays(versions.size());
  uint64_t whole = 0;
  for (size_t i = versions.size(); i > 0; --i) {
    const bool is_counted = versions[i - 1].complete && whole < keep;
    // Newer than every whole one: it may be written just now.
    stays[i - 1] = is_counted || (!versions[i - 1].complete && whole == 0);
    whole += is_counted ? 1 : 0;
  }
  for (size_t i = versions.size(); i > 0; --i) {
    if (!stays[i - 1]) continue;
    auto base = BaseOf(versions, i - 1);
    while (base.has_value() && !stays[*base]) {
      stays[*base] = true;
      base = BaseOf(versions, *base);
    }
  }
  return stays;
}

}  // namespace

Result<PruneReport> PruneVersions(std::string_view uri,
                                  const PruneOptions& options) {
  return OrNoMemory([&]() -> Result<PruneReport> {
    if (options.keep == 0) {
      return Status(Code::kInvalidArgument,
                    "keep is 0: expected at least one version");
    }
    HAULWAY_ASSIGN(const std::vector<WeightVersion> versions,
                   ListVersions(uri, options.remote));
    const std::vector<bool> stays = Kept(versions, options.keep);
    PruneReport report;
    for (size_t i = versions.size(); i > 0; --i) {
      const WeightVersion& version = versions[i - 1];
      if (stays[i - 1] || IsLink(version.path)) {
        report.kept.insert(report.kept.begin(), version.id);
        continue;
      }
      if (!options.dry_run) {
        HAULWAY_TRY(RemoveVersionFolder(version.path, options.remote));
      }
      report.removed.push_back(version.id);
    }
    // What a prune that was killed left behind.
    const auto local = LocalPath(uri);
    if (local.has_value() && !options.dry_run) {
      SweepVersionFolders(local->empty() ? "." : *local);
      SweepVersionFolders(*local + "/updates");
    }
    return report;
  });
}

}  // namespace haulway
