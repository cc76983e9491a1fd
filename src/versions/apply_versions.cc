// Design: an update is made ready in a hidden folder of the target: the files
// of the delta and a journal, or the files of a full version. The folder gets
// its name when all of it is there, and then the target states no version until
// all updates of the call have ended. A process that is killed leaves all that
// the next one needs, even if the run is gone.
//
//   state.json: base, an update     nothing was changed: the update is dropped
//   no state.json, an update        interrupted: the update goes on
//   no state.json, haulway-version  between two updates: that is the version
//
// If the machine stops, the bytes of a target without state.json are not known.
// So only two steps of a chain of deltas are durable: haulway-version is there
// before state.json is removed, and the weights before it is written again. The
// files of an update and its journal need not be. Tried before: to make each
// version durable, 9 syncs for each.

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/folder.h"
#include "checkpoint/interrupted_update.h"
#include "checkpoint/sharded_reader.h"
#include "checkpoint/version_chain.h"
#include "checkpoint/version_source.h"
#include "delta/version_facts.h"
#include "haulway/delta_apply.h"
#include "haulway/folder.h"
#include "haulway/machine.h"
#include "io/model_names.h"
#include "safetensors/safetensors_reader.h"
#include "versions/change_journal.h"
#include "versions/copy_files.h"
#include "versions/target_folder.h"
#include "versions/tensor_update.h"
#include "versions/version_catalog.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

// In the folder of an update: the files of the version, and a journal for a
// delta or, for a full version, its name and those of its files.
constexpr std::string_view kFiles = "files";
constexpr std::string_view kJournal = "journal";
constexpr std::string_view kNames = "names";

std::string PaddedNumber(const std::string& version) {
  const bool is_number =
      !delta::NumberOf(version).empty() && !version.starts_with('v');
  return is_number ? fmt::format("{:0>6}", version) : version;
}

std::string WithSlash(std::string_view folder) {
  return fmt::format("{}{}", folder, folder.ends_with('/') ? "" : "/");
}

bool IsWeights(std::string_view name) {
  return name.ends_with(".safetensors") || name == kVersionIndexName;
}

class Applier {
 public:
  Applier(TargetFolder target, const ApplyVersionsOptions& options)
      : target_(std::move(target)),
        options_(options),
        threads_(options.threads > 0 ? options.threads : UsableCpus()) {}

  Result<ApplyReport> Run(std::string_view uri) {
    HAULWAY_TRY(Settled(Resume()));
    HAULWAY_ASSIGN(at_, target_.Version());
    HAULWAY_TRY(Start());
    if (!report_.resumed) report_.from = at_.value_or("");
    HAULWAY_TRY(Forget(Settled(Follow(uri))));
    report_.to = at_.value_or("");
    return std::move(report_);
  }

 private:
  // States the version that deltas led to, also if a later one was refused.
  Status Settled(Status status) {
    if (!is_unsettled_) return status;
    is_unsettled_ = false;
    HAULWAY_TRY(target_.Settle(*at_));
    is_held_ = false;
    return status;
  }

  // Ends an update that was interrupted.
  Status Resume() {
    if (!IsUpdateInterrupted(target_.path())) {
      HAULWAY_TRY(target_.Release());
      return target_.EndUpdate();
    }
    report_.resumed = true;
    is_held_ = true;
    std::error_code error;
    if (fs::exists(fmt::format("{}/{}", target_.update(), kNames), error)) {
      return ReplaceFiles();
    }
    const auto held = target_.Held();
    if (!held.ok()) {
      lost_ = held.status();
      return Status();
    }
    if (!fs::exists(target_.update(), error)) {
      report_.from = **held;
      return Ended(**held);
    }
    const std::string files = fmt::format("{}/{}", target_.update(), kFiles);
    HAULWAY_ASSIGN(TensorUpdate update, OpenUpdate(files, files));
    report_.from = update.facts().base;
    if (held->has_value() &&
        delta::IsSameVersion(**held, update.facts().version)) {
      return Ended(update.facts().version);
    }
    auto journal = ChangeJournal::Open(
        fmt::format("{}/{}", target_.update(), kJournal), update.tensors());
    if (!journal.ok()) {
      // Nobody knows what the bytes are.
      lost_ = journal.status();
      return Status();
    }
    HAULWAY_TRY(update.OpenFiles());
    return Change(&update, &*journal);
  }

  // Sets the version that the target holds, from the option `start`.
  Status Start() {
    const std::string start = PaddedNumber(options_.start);
    if (at_.has_value()) {
      if (start.empty() || IsVersionNamed(*at_, start)) return Status();
      return Status(Code::kInvalidArgument,
                    fmt::format("the target states that it holds version {}, "
                                "not {}: leave out start= or --from",
                                Quote(*at_), Quote(start)))
          .Of(target_.path());
    }
    if (!lost_.ok()) return Status();
    HAULWAY_ASSIGN(const auto files, target_.Files());
    if (files.empty()) {
      if (start.empty()) return Status();
      return Status(
                 Code::kInvalidArgument,
                 fmt::format("the target is empty, and does not hold version "
                             "{}: leave out start= or --from",
                             Quote(start)))
          .Of(target_.path());
    }
    if (start.empty()) {
      return Status(Code::kInvalidArgument,
                    "the target states no version: name the one that it holds "
                    "with start= or --from, or begin with an empty folder")
          .Of(target_.path());
    }
    HAULWAY_TRY(target_.SetVersion(start));
    at_ = start;
    is_claimed_ = true;
    return Status();
  }

  // If nothing was applied to the version that `start` says, the target again
  // states none: `start` may be why.
  Status Forget(Status status) const {
    std::error_code error;
    if (status.ok() || !is_claimed_ || report_.versions > 0 ||
        fs::exists(target_.update(), error)) {
      return status;
    }
    HAULWAY_TRY(target_.ForgetVersion());
    return status;
  }

  // Applies the versions that lead to the goal.
  Status Follow(std::string_view uri) {
    const std::string& to = options_.to;
    if (at_.has_value() && !to.empty() && IsVersionNamed(*at_, to)) {
      return Status();
    }
    const bool is_base = delta::NumberOf(to) == "0";
    auto opened = VersionCatalog::Open(uri, options_.source);
    if (!opened.ok()) {
      const bool is_fine = is_base && opened.status().code() == Code::kNotFound;
      return is_fine ? ToBase(to) : opened.status();
    }
    VersionCatalog& catalog = *opened;
    HAULWAY_ASSIGN(const WeightVersion* goal,
                   to.empty() ? catalog.Newest() : catalog.Find(to));
    if (goal == nullptr) {
      if (is_base) return ToBase(to);
      return Status(Code::kNotFound,
                    to.empty()
                        ? "no complete version of weights is here"
                        : fmt::format("version {} is not here", Quote(to)))
          .Of(ShownName(uri));
    }
    if (at_.has_value() && delta::IsOlderVersion(goal->id, *at_)) {
      return HoldsNewer(goal->id);
    }
    HAULWAY_ASSIGN(const std::vector<WeightVersion> chain,
                   FindChain(&catalog, at_.value_or(""), *goal));
    for (const WeightVersion& version : chain) {
      if (version.kind == "full") {
        HAULWAY_TRY(BeginFrom(version.path, version.id));
        ++report_.versions;
        continue;
      }
      if (!at_.has_value()) {
        HAULWAY_TRY(CheckFirst(version));
        HAULWAY_TRY(ToBase(version.base));
      }
      if (!delta::IsSameVersion(version.base, *at_)) {
        return Status(Code::kNotFound,
                      fmt::format("version {} builds on version {}, which is "
                                  "not here, and the target holds version {}",
                                  Quote(version.id), Quote(version.base),
                                  Quote(*at_)))
            .Of(ShownName(version.path));
      }
      HAULWAY_TRY(ApplyDelta(version));
    }
    return Status();
  }

  // Fails unless the checkpoint that `base` names may be the version on which
  // `first` builds.
  Status CheckFirst(const WeightVersion& first) const {
    if (delta::CheckBase(first.id, first.base, std::nullopt).ok()) {
      return Status();
    }
    std::string base = options_.source.base;
    if (base.empty()) return Status();
    if (!LocalPath(base).has_value()) base = WithSlash(base);
    auto opened = OpenSource(base, options_.source);
    if (!opened.ok()) return std::move(opened).status().Of(ShownName(base));
    HAULWAY_ASSIGN(const auto states, StatedVersion(**opened));
    Status status = delta::CheckBase(first.id, first.base, states);
    if (status.ok()) return status;
    return std::move(status).Of(ShownName(first.path));
  }

  Status HoldsNewer(std::string_view goal) const {
    return Status(
               Code::kInvalidArgument,
               fmt::format("the target holds version {}, which is newer than "
                           "{}: begin with an empty folder to go back",
                           Quote(*at_), Quote(goal)))
        .Of(target_.path());
  }

  // Fills a target that holds nothing from the base, which is version `id`.
  Status ToBase(const std::string& id) {
    const std::string version = PaddedNumber(id);
    if (at_.has_value()) return HoldsNewer(version);
    if (options_.source.base.empty()) {
      if (!lost_.ok()) {
        return Status(Code::kTruncated,
                      fmt::format("an update was interrupted, and {}: the "
                                  "target must be filled anew; name the "
                                  "checkpoint with base= or --base",
                                  lost_.message()))
            .Of(target_.path());
      }
      return Status::FromErrno(
                 ENOENT,
                 fmt::format("the target is empty, and version {} is not "
                             "beside the others: name the checkpoint with "
                             "base= or --base",
                             Quote(version)))
          .Of(target_.path());
    }
    return BeginFrom(options_.source.base, version);
  }

  // Returns the files of a full checkpoint in a folder.
  Result<std::vector<std::string>> FilesOf(const std::string& folder) const {
    std::vector<std::string> files;
    const auto local = LocalPath(folder);
    if (local.has_value() && !IsFolder(*local)) {
      return Status(Code::kUnsupported,
                    "expected a folder, not a file: the target is filled with "
                    "all files of the folder; put the file into one")
          .Of(folder);
    }
    if (local.has_value()) HAULWAY_TRY(CheckNotInterrupted(*local));
    HAULWAY_ASSIGN(files,
                   ListFolder(local.has_value() ? folder : WithSlash(folder),
                              Depth::kFolder, options_.source.remote));
    std::erase_if(files, [](const std::string& file) {
      return LastPart(file).starts_with('.');
    });
    const bool has_weights = std::ranges::any_of(
        files, [](const auto& file) { return file.ends_with(".safetensors"); });
    if (has_weights) return files;
    return Status(Code::kUnsupported,
                  "the folder holds no safetensors files: versions are applied "
                  "to these only")
        .Of(ShownName(folder));
  }

  // Adds the configuration and tokenizer of the base for a target that is
  // filled from a full version without them.
  Status AddPlainFiles(std::vector<std::string>* files) const {
    const std::string& base = options_.source.base;
    if (base.empty() || !HasFolders(base)) return Status();
    const auto local = LocalPath(base);
    if (local.has_value() && !IsFolder(*local)) return Status();
    HAULWAY_ASSIGN(const std::vector<std::string> others,
                   ListFolder(local.has_value() ? *local : WithSlash(base),
                              Depth::kFolder, options_.source.remote));
    std::set<std::string_view> present;
    for (const std::string& file : *files) present.insert(LastPart(file));
    std::vector<std::string> added;
    std::error_code error;
    for (const std::string& file : others) {
      const std::string_view name = LastPart(file);
      if (IsPlainFile(name) && !present.contains(name) &&
          !fs::exists(target_.In(name), error)) {
        added.push_back(file);
      }
    }
    files->insert(files->end(), added.begin(), added.end());
    return Status();
  }

  // Fails if the folder holds a delta.
  Status CheckFull(const std::vector<std::string>& files) const {
    for (const std::string& file : files) {
      if (LastPart(file) != kVersionIndexName) continue;
      HAULWAY_ASSIGN(const auto source, OpenSource(file, options_.source));
      HAULWAY_ASSIGN(const ShardedIndex index, ReadShardedIndex(*source, {}));
      if (!delta::IsDelta(index.metadata)) continue;
      return Status(Code::kUnsupported,
                    "the base is a delta: expected a full checkpoint")
          .Of(source->name());
    }
    return Status();
  }

  // Replaces all files of weights by those of a full checkpoint.
  Status BeginFrom(const std::string& folder, const std::string& id) {
    HAULWAY_ASSIGN(std::vector<std::string> files, FilesOf(folder));
    HAULWAY_TRY(CheckFull(files));
    if (!at_.has_value()) HAULWAY_TRY(AddPlainFiles(&files));
    HAULWAY_TRY(target_.BeginUpdate());
    const std::string into = fmt::format("{}/{}", target_.new_update(), kFiles);
    std::error_code error;
    fs::create_directory(into, error);
    std::vector<std::string> names = {id};
    for (const std::string& file : files) {
      if (options_.cancel != nullptr && options_.cancel->load()) {
        return Dropped(Status(Code::kCancelled, "applying was cancelled"));
      }
      const std::string_view name = LastPart(file);
      const auto copied = CopyTo(fmt::format("{}/{}", into, name), file,
                                 options_.source, target_.durability());
      if (!copied.ok()) return Dropped(copied.status());
      report_.written_bytes += *copied;
      Status whole = CheckCopied(fmt::format("{}/{}", into, name));
      if (!whole.ok()) return Dropped(std::move(whole).Of(ShownName(file)));
      names.emplace_back(name);
    }
    HAULWAY_TRY(target_.Sync(into));
    HAULWAY_TRY(target_.WriteLines(kNames, names));
    HAULWAY_TRY(target_.CommitUpdate(target_.durability()));
    HAULWAY_TRY(target_.ForgetVersion());
    is_unsettled_ = false;
    return ReplaceFiles();
  }

  // Fails if a copied file of weights is cut, or a shard of a delta whose index
  // was lost.
  static Status CheckCopied(const std::string& path) {
    if (!path.ends_with(".safetensors")) return Status();
    HAULWAY_ASSIGN(auto source, OpenFileSource(path));
    HAULWAY_ASSIGN(const auto reader,
                   safetensors::OpenSafetensors(std::move(source), {}));
    return RefuseDeltaShard(*reader);
  }

  // Drops an update that has changed nothing.
  Status Dropped(Status status) const {
    HAULWAY_TRY(target_.DropUpdate());
    return status;
  }

  // Gives the files of the update their names in the target.
  Status ReplaceFiles() {
    HAULWAY_ASSIGN(std::vector<std::string> names, target_.ReadLines(kNames));
    if (names.empty()) {
      return Status(Code::kCorrupt, "the list of files is damaged")
          .Of(target_.update());
    }
    const std::string id = names.front();
    names.erase(names.begin());
    for (const std::string& name : names) {
      const std::string from =
          fmt::format("{}/{}/{}", target_.update(), kFiles, name);
      // It is not there if it was renamed before the interruption.
      if (::rename(from.c_str(), target_.In(name).c_str()) == 0) continue;
      if (errno == ENOENT && ::access(target_.In(name).c_str(), F_OK) == 0) {
        continue;
      }
      return Status::FromErrno(errno, "cannot rename the file")
          .Of(target_.In(name));
    }
    HAULWAY_ASSIGN(const auto present, target_.Files());
    for (const std::string& name : present) {
      if (!IsWeights(name) || std::ranges::find(names, name) != names.end()) {
        continue;
      }
      if (::unlink(target_.In(name).c_str()) != 0 && errno != ENOENT) {
        return Status::FromErrno(errno, "cannot remove the file")
            .Of(target_.In(name));
      }
    }
    HAULWAY_TRY(target_.Sync(target_.path()));
    HAULWAY_TRY(target_.Settle(id));
    is_held_ = false;
    at_ = id;
    return target_.EndUpdate();
  }

  // Opens the delta in a local folder.
  Result<TensorUpdate> OpenUpdate(const std::string& folder,
                                  std::string origin) const {
    HAULWAY_ASSIGN(const auto source, OpenFileSource(fmt::format(
                                          "{}/{}", folder, kVersionIndexName)));
    HAULWAY_ASSIGN(const ShardedIndex index, ReadShardedIndex(*source, {}));
    HAULWAY_ASSIGN(delta::OpenedDelta delta, OpenDelta(*source, index, {}));
    return TensorUpdate::Make(target_, std::move(delta), std::move(origin));
  }

  // Copies the files of a delta to a folder.
  Status CopyDelta(const WeightVersion& version,
                   const std::string& into) const {
    const auto copy = [&](std::string_view name) {
      return CopyTo(fmt::format("{}/{}", into, name),
                    fmt::format("{}/{}", version.path, name), options_.source,
                    Durability::kNone)
          .status();
    };
    HAULWAY_TRY(copy(kVersionIndexName));
    HAULWAY_ASSIGN(const auto source, OpenFileSource(fmt::format(
                                          "{}/{}", into, kVersionIndexName)));
    HAULWAY_ASSIGN(const ShardedIndex index, ReadShardedIndex(*source, {}));
    for (const std::string& file : index.files) {
      if (file.find('/') != file.npos || file == "..") {
        return Status(Code::kCorrupt,
                      fmt::format("the index names a file outside its folder: "
                                  "{}",
                                  Quote(file)))
            .Of(ShownName(version.path));
      }
      HAULWAY_TRY(copy(file));
    }
    return Status();
  }

  Status ApplyDelta(const WeightVersion& version) {
    HAULWAY_TRY(target_.BeginUpdate());
    const auto make_ready = [&]() -> Result<TensorUpdate> {
      const std::string into =
          fmt::format("{}/{}", target_.new_update(), kFiles);
      std::error_code error;
      fs::create_directory(into, error);
      HAULWAY_TRY(CopyDelta(version, into));
      auto opened = OpenUpdate(into, version.path);
      // The fault is told of the version's files, not of the copies.
      if (!opened.ok()) HAULWAY_TRY(CheckFiles(version, options_.source));
      return opened;
    };
    auto update = make_ready();
    if (!update.ok()) return Dropped(update.status());
    if (update->tensors() == 0) {
      ++report_.versions;
      return Ended(update->facts().version);
    }
    const auto prepare = [&]() -> Result<ChangeJournal> {
      HAULWAY_ASSIGN(const auto kept, update->CheckFrames(threads_));
      HAULWAY_TRY(update->OpenFiles());
      return ChangeJournal::Make(
          fmt::format("{}/{}", target_.new_update(), kJournal), kept,
          static_cast<uint32_t>(
              std::min<uint64_t>(threads_, update->tensors())));
    };
    auto journal = prepare();
    if (!journal.ok()) return Dropped(journal.status());
    HAULWAY_TRY(target_.CommitUpdate(Durability::kNone));
    if (!is_held_) {
      HAULWAY_TRY(target_.Hold(*at_, target_.durability()));
      HAULWAY_TRY(target_.ForgetVersion());
      is_held_ = true;
    }
    return Change(&*update, &*journal);
  }

  // Changes the tensors; the target states no version, and the update is there.
  Status Change(TensorUpdate* update, ChangeJournal* journal) {
    Status status = update->Run(journal, threads_, options_.cancel);
    report_.written_bytes += update->written_bytes();
    is_unsettled_ = false;
    if (!status.ok() && !update->is_undone()) return status;
    if (!update->is_undone()) {
      report_.tensors += update->tensors();
      ++report_.versions;
      return Ended(update->facts().version);
    }
    HAULWAY_TRY(Ended(update->facts().base));
    return status;
  }

  // The update has ended: the target holds version `id`.
  Status Ended(const std::string& id) {
    if (is_held_) HAULWAY_TRY(target_.Hold(id, Durability::kNone));
    at_ = id;
    is_unsettled_ = true;
    return target_.EndUpdate();
  }

  const TargetFolder target_;
  const ApplyVersionsOptions& options_;
  const int threads_;
  std::optional<std::string> at_;  // The version that the target holds.
  bool is_claimed_ = false;        // Only the option `start` says so.
  bool is_held_ = false;           // No version is stated until the end.
  bool is_unsettled_ = false;      // at_ is right, and is not stated.
  Status lost_;  // Why the target's bytes are not known, if they are not.
  ApplyReport report_;
};

// Fails if the target is the folder of the versions, or one of them: both would
// be lost.
Status CheckApart(const std::string& target, std::string_view uri) {
  const auto run = LocalPath(uri);
  if (!run.has_value()) return Status();
  std::error_code error;
  const fs::path at = fs::weakly_canonical(target, error);
  if (error) return Status();
  const fs::path of_run =
      fs::weakly_canonical(run->empty() ? "." : *run, error);
  if (error) return Status();
  const bool is_version =
      (at.parent_path() == of_run || at.parent_path() == of_run / "updates") &&
      !delta::DigitsOfFolder(at.filename().native()).empty();
  if (at != of_run && !is_version) return Status();
  return Status(Code::kInvalidArgument,
                fmt::format("the target is {}: expected a folder of its own, "
                            "which is changed to a version",
                            is_version ? "a version of the run"
                                       : "the folder of the versions"))
      .Of(target);
}

}  // namespace

Result<ApplyReport> ApplyVersions(std::string_view target, std::string_view uri,
                                  const ApplyVersionsOptions& options) {
  const auto began = std::chrono::steady_clock::now();
  auto report = OrNoMemory([&]() -> Result<ApplyReport> {
    const auto path = LocalPath(target);
    if (!path.has_value()) {
      return Status(Code::kUnsupported, "versions are applied to local folders")
          .Of(ShownName(target));
    }
    HAULWAY_TRY(CheckApart(*path, uri));
    HAULWAY_ASSIGN(
        TargetFolder folder,
        TargetFolder::Lock(*path, options.durability, options.cancel));
    return Applier(std::move(folder), options).Run(uri);
  });
  if (report.ok()) {
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - began;
    report->seconds = took.count();
  }
  return report;
}

}  // namespace haulway
