// Design: what goes is decided before anything goes, from one listing. A local
// checkpoint is renamed, then removed, so that a kill leaves a hidden folder.
// In a store the file goes first without which the rest is not whole.
//
// What is newer than the newest good checkpoint stays, because it may be in the
// making. One checkpoint of those that stay is verified with digests; for the
// others sizes are enough, so that pruning reads one checkpoint at most.
//
// What no name shows to be a step of the run neither counts nor goes: it may be
// any model that lies there.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "haulway/open.h"
#include "haulway/runs.h"
#include "io/file_system.h"
#include "io/model_names.h"
#include "runs/local_names.h"
#include "runs/run_manifest.h"
#include "runs/run_reading.h"
#include "runs/sound_entry.h"
#include "s3/s3_remove.h"

namespace haulway {

namespace {

// What is to become of each entry, and the newest good one.
struct Decision {
  std::vector<bool> stays;
  std::optional<size_t> newest_good;
  // Whether one that goes looked damaged, as one does that is saved again.
  bool may_have_changed = false;
};

// Lets the checkpoints stay that the newest ones name as the best.
void KeepBest(const ReadRun& run, Decision* decision) {
  if (run.layout->best == nullptr) return;
  for (size_t i = 0; i <= *decision->newest_good; ++i) {
    const std::string best = run.layout->best(run.folder, run.entries[i]);
    const auto found = std::ranges::find(run.entries, best, &FoundEntry::name);
    if (found != run.entries.end()) {
      decision->stays[static_cast<size_t>(found - run.entries.begin())] = true;
    }
  }
}

Result<Decision> Decide(const ReadRun& run, const PruneRunOptions& options) {
  Decision decision;
  decision.stays.assign(run.entries.size(), false);
  uint64_t good = 0;
  bool is_verified = false;
  for (size_t i = 0; i < run.entries.size(); ++i) {
    if (good >= options.keep && is_verified) break;
    RunOptions check = options.run;
    const FoundEntry& found = run.entries[i];
    if (!found.is_step) continue;
    const bool is_trusted =
        options.trusted.has_value() && found.step == options.trusted;
    check.digests = !is_verified && !is_trusted;
    HAULWAY_ASSIGN(const RunEntry entry, CheckEntry(run, i, check));
    if (!entry.good) {
      // It may be in the making, or all that there is.
      decision.stays[i] = good == 0;
      decision.may_have_changed |= good != 0;
      continue;
    }
    decision.stays[i] = true;
    if (!decision.newest_good.has_value()) decision.newest_good = i;
    is_verified = true;
    ++good;
  }
  for (size_t i = 0; i < run.entries.size(); ++i) {
    const FoundEntry& found = run.entries[i];
    // A step that was just saved may be older than others.
    if (options.trusted.has_value() && found.step == options.trusted) {
      decision.stays[i] = true;
    }
    if (!is_verified) decision.stays[i] = found.is_step;
  }
  if (decision.newest_good.has_value()) KeepBest(run, &decision);
  return decision;
}

// The names of a run's folder to which links of the folder lead.
std::set<std::string> LinkedNames(const RunFolder& folder) {
  std::set<std::string> names;
  for (const RunFile& file : folder.files()) {
    if (!file.is_link) continue;
    std::error_code error;
    const auto target =
        std::filesystem::read_symlink(folder.root() + file.name, error);
    if (error) continue;
    const auto parent = std::filesystem::path(file.name).parent_path();
    const std::string name = (parent / target).lexically_normal().native();
    names.insert(name);
    // An absolute target.
    for (const RunFile& other : folder.files()) {
      if (other.name.find('/') == other.name.npos && !other.is_link &&
          target.is_absolute() &&
          IsSameFile(folder.root() + other.name, target.native())) {
        names.insert(other.name);
      }
    }
  }
  return names;
}

// A bucket has no folders: what is not there is empty.
Status CheckFolderIsThere(const RunFolder& folder, std::string_view uri) {
  std::error_code error;
  if (!folder.is_local() || std::filesystem::exists(folder.root(), error) ||
      error) {
    return Status();
  }
  return Status(Code::kNotFound, "there is no such folder").Of(ShownName(uri));
}

class Pruner {
 public:
  Pruner(const ReadRun& run, const PruneRunOptions& options)
      : run_(run), options_(options) {
    if (run.folder.is_local()) linked_ = LinkedNames(run.folder);
  }

  Result<PruneRunReport> Run(const Decision& decision) {
    for (size_t i = 0; i < run_.entries.size(); ++i) {
      const FoundEntry& entry = run_.entries[i];
      const std::string path = run_.folder.PathOf(entry.name);
      if (decision.stays[i]) {
        report_.kept.insert(report_.kept.begin(), path);
        continue;
      }
      if (const std::string reason = Refusal(entry); !reason.empty()) {
        report_.refused.push_back({path, entry.step, reason});
        continue;
      }
      if (!options_.dry_run) {
        const Status removed = Remove(entry);
        if (!removed.ok()) {
          report_.failed = true;
          report_.refused.push_back(
              {path, entry.step, std::string(removed.message())});
          continue;
        }
      }
      report_.removed.push_back(path);
    }
    if (!options_.dry_run && decision.newest_good.has_value()) {
      HAULWAY_TRY(Sweep(run_.entries[*decision.newest_good]));
    }
    return std::move(report_);
  }

 private:
  // Returns why an entry is not to be removed; "" if it may be.
  std::string Refusal(const FoundEntry& entry) const {
    const RunFile* const file = run_.folder.Find(entry.name);
    if (file != nullptr && file->is_link) return "is a symbolic link";
    if (linked_.contains(entry.name)) return "a symbolic link leads to it";
    if (!entry.is_step) return "its name has no step";
    if (run_.layout->name != "haulway") return "";
    const std::string manifest =
        fmt::format("{}/{}", entry.name, kRunManifestName);
    if (entry.is_unended || run_.folder.Find(manifest) != nullptr) return "";
    return fmt::format("has no {}: another program made it", kRunManifestName);
  }

  Status Remove(const FoundEntry& entry) const {
    if (run_.folder.is_local()) {
      return MoveAway(run_.folder.root(), run_.folder.root() + entry.name)
          .status();
    }
    std::vector<std::string> first, rest;
    if (!run_.folder.IsFolder(entry.name)) {
      rest.push_back(run_.folder.root() + entry.name);
    }
    for (const RunFile& file : run_.folder.Below(entry.name)) {
      const std::string_view last = LastPart(file.name);
      const bool is_first =
          last == kRunManifestName ||
          (!run_.layout->last.empty() && last.ends_with(run_.layout->last));
      (is_first ? first : rest).push_back(run_.folder.root() + file.name);
    }
    HAULWAY_TRY(RemoveFiles(first, run_.folder.remote()));
    return RemoveFiles(rest, run_.folder.remote());
  }

  // Removes what killed saves and prunes left.
  Status Sweep(const FoundEntry& newest) const {
    const RunFolder& folder = run_.folder;
    if (folder.is_local()) return SweepSteps(folder.root(), newest.step);
    if (run_.layout->name != "haulway") return Status();
    HAULWAY_TRY(SweepSaves(newest));
    return SweepUploads(newest);
  }

  // Removes the files of saves that no manifest names. Those of the newest step
  // may be in the making.
  Status SweepSaves(const FoundEntry& newest) const {
    std::vector<std::string> left;
    for (size_t i = 0; i < run_.entries.size(); ++i) {
      const FoundEntry& entry = run_.entries[i];
      if (entry.step >= newest.step) continue;
      const auto manifest = ManifestOf(run_.folder, entry);
      // Removed just now, or not whole: then all of it went or was refused.
      if (!manifest.ok() || !manifest->has_value()) continue;
      const std::string all = fmt::format("{}/{}", entry.name, kSavePrefix);
      const std::string used =
          fmt::format("{}/{}/", entry.name, (*manifest)->save);
      for (const RunFile& file : run_.folder.Below(entry.name)) {
        if (file.name.starts_with(all) && !file.name.starts_with(used)) {
          left.push_back(run_.folder.root() + file.name);
        }
      }
    }
    return RemoveFiles(left, run_.folder.remote());
  }

  Status SweepUploads(const FoundEntry& newest) const {
    const std::string& root = run_.folder.root();
    const size_t bucket = root.find('/', root.find("://") + 3);
    const std::string prefix =
        root.substr(bucket == root.npos ? root.size() : bucket + 1);
    const auto is_old = [&](std::string_view key) {
      if (!key.starts_with(prefix)) return false;
      key.remove_prefix(prefix.size());
      key = key.substr(0, key.find('/'));
      if (!key.starts_with("step-")) return false;
      const auto step = WholeNumberOf(key.substr(5));
      return step.has_value() && *step < *newest.step;
    };
    return s3::AbortUploads(root, {}, run_.folder.remote(), is_old).status();
  }

  const ReadRun& run_;
  const PruneRunOptions& options_;
  std::set<std::string> linked_;
  PruneRunReport report_;
};

}  // namespace

Result<PruneRunReport> PruneRun(std::string_view uri,
                                const PruneRunOptions& options) {
  return OrNoMemory([&]() -> Result<PruneRunReport> {
    if (options.keep == 0) {
      return Status(Code::kInvalidArgument,
                    "keep is 0: expected at least one checkpoint");
    }
    const CancelScope scope(options.run.cancel);
    HAULWAY_ASSIGN(ReadRun run, ReadRunOf(uri, options.run));
    for (int listing = 1;; ++listing) {
      if (run.entries.empty()) {
        HAULWAY_TRY(CheckFolderIsThere(run.folder, uri));
        return PruneRunReport();
      }
      HAULWAY_ASSIGN(const Decision decision, Decide(run, options));
      if (decision.may_have_changed && listing < kMostListings) {
        HAULWAY_ASSIGN(ReadRun again, ReadRunOf(uri, options.run));
        if (!std::ranges::equal(run.folder.files(), again.folder.files())) {
          run = std::move(again);
          continue;
        }
      }
      return Pruner(run, options).Run(decision);
    }
  });
}

}  // namespace haulway
