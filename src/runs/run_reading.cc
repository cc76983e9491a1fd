// Design: one listing tells all names and sizes. Checkpoints are then checked
// one by one from the newest on, so a run of a thousand costs no more than its
// newest. A checkpoint that is saved again while it is checked can look
// damaged: if one does, the names are listed again, and if they changed,
// everything begins anew. A model that only lies in the folder is no answer to
// "where to resume", unless there is nothing else.

#include "runs/run_reading.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <utility>

#include "base/no_memory.h"
#include "base/text.h"
#include "haulway/options.h"
#include "runs/run_manifest.h"
#include "runs/sound_entry.h"

namespace haulway {

namespace {

constexpr uint64_t kMostPointerBytes = 4096;

std::string_view Trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const size_t first = text.find_first_not_of(kBlank);
  if (first == text.npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

// Sorts the newest first. Those that cannot be read come before all others,
// since they may be newer; those without a step after them.
void SortNewestFirst(std::vector<FoundEntry>* entries) {
  const auto rank = [](const FoundEntry& entry) {
    return std::tuple(!entry.fault.ok(), entry.step.has_value(),
                      entry.step.value_or(0), entry.version);
  };
  std::ranges::sort(*entries, {}, &FoundEntry::name);
  std::ranges::stable_sort(*entries, [&](const auto& a, const auto& b) {
    return rank(a) > rank(b);
  });
}

// Moves the entry that the pointer names to where those begin that are
// committed.
Status FollowPointer(ReadRun* run) {
  const std::string_view pointer = run->layout->pointer;
  if (pointer.empty()) return Status();
  const auto skip = [&](std::string reason) {
    run->skipped.push_back({run->folder.PathOf(pointer), std::nullopt,
                            std::move(reason) + ": all checkpoints count"});
    return Status();
  };
  if (run->folder.Find(pointer) == nullptr) return skip("is not there");
  const auto read = run->folder.Read(pointer, kMostPointerBytes);
  if (!read.ok()) {
    return IsDamage(read.status()) ? skip("cannot be read") : read.status();
  }
  const std::string_view text = Trimmed(*read);
  if (text.empty()) return skip("is empty");
  const std::string named = run->layout->pointed(text);
  const auto found = std::ranges::find(run->entries, named, &FoundEntry::name);
  if (found == run->entries.end()) {
    return skip(fmt::format("names {}, which is not there", Quote(text)));
  }
  const auto row = static_cast<size_t>(found - run->entries.begin());
  if (!found->step.has_value()) {
    // What has no step is newer than all others if the pointer says so.
    found->is_step = true;
    std::rotate(run->entries.begin(), found, found + 1);
  } else {
    run->uncommitted = row;
  }
  return Status();
}

Result<const RunLayout*> LayoutOf(const RunFolder& folder,
                                  std::string_view name) {
  for (const RunLayout& layout : RunLayouts()) {
    if (name.empty() ? layout.is_of(folder) : layout.name == name) {
      return &layout;
    }
  }
  if (name.empty()) return nullptr;
  return Status(Code::kInvalidArgument,
                fmt::format("layout {}: expected one of {}", Quote(name),
                            fmt::join(kRunLayoutWords, ", ")));
}

SkippedEntry SkippedOf(const RunEntry& entry) {
  return {entry.path, entry.step, entry.reason};
}

struct Found {
  LatestReport report;
  bool may_have_changed = false;
};

Result<Found> FindIn(const ReadRun& run, const RunOptions& options) {
  Found found;
  if (run.entries.empty()) return found;
  // What has no step may be a model that only lies there.
  const bool has_steps =
      std::ranges::any_of(run.entries, [](const FoundEntry& entry) {
        return entry.is_step || entry.step.has_value();
      });
  if (!std::ranges::all_of(run.entries, &FoundEntry::is_unended)) {
    found.report.layout = run.layout->name;
  }
  found.report.skipped = run.skipped;
  for (size_t i = 0; i < run.entries.size(); ++i) {
    if (options.cancel != nullptr && options.cancel->load()) {
      return Status(Code::kCancelled, "cancelled");
    }
    const FoundEntry& named = run.entries[i];
    if (has_steps && named.fault.ok() && !named.is_step &&
        !named.step.has_value()) {
      continue;
    }
    HAULWAY_ASSIGN(RunEntry entry, CheckEntry(run, i, options));
    if (entry.good) {
      found.report.verified = options.digests;
      found.report.entry = std::move(entry);
      break;
    }
    found.report.skipped.push_back(SkippedOf(entry));
    found.may_have_changed = true;
  }
  return found;
}

}  // namespace

Result<ReadRun> ReadRunOf(std::string_view uri, const RunOptions& options) {
  HAULWAY_ASSIGN(RunFolder folder, RunFolder::List(uri, options.remote));
  return ReadRunIn(std::move(folder), options);
}

Result<ReadRun> ReadRunIn(RunFolder folder, const RunOptions& options) {
  ReadRun run;
  run.folder = std::move(folder);
  HAULWAY_ASSIGN(run.layout, LayoutOf(run.folder, options.layout));
  if (run.layout == nullptr) return run;
  HAULWAY_ASSIGN(run.entries, run.layout->entries(run.folder));
  if (run.entries.empty()) {
    run.layout = nullptr;
    return run;
  }
  SortNewestFirst(&run.entries);
  HAULWAY_TRY(FollowPointer(&run));
  if (options.step.has_value()) {
    std::erase_if(run.entries, [&](const FoundEntry& entry) {
      return entry.step != options.step;
    });
    run.uncommitted = 0;
    run.skipped.clear();
    if (run.entries.empty()) run.layout = nullptr;
  }
  return run;
}

Result<RunEntry> CheckEntry(const ReadRun& run, size_t row,
                            const RunOptions& options) {
  const FoundEntry& found = run.entries[row];
  RunEntry entry{.path = run.folder.PathOf(found.name),
                 .step = found.step,
                 .layout = std::string(run.layout->name)};
  if (const RunFile* const file = run.folder.Find(found.name)) {
    entry.bytes = file->bytes;
  }
  for (const RunFile& file : run.folder.Below(found.name)) {
    entry.bytes += file.bytes;
  }
  const auto check = [&]() -> Status {
    if (row < run.uncommitted) {
      return Status(Code::kTruncated,
                    fmt::format("is newer than what {} names: its save did "
                                "not end",
                                run.layout->pointer));
    }
    if (!found.fault.ok()) return found.fault;
    if (found.is_unended) {
      return Status(Code::kTruncated,
                    fmt::format("has no {}: its save did not end, or it was "
                                "removed",
                                kRunManifestName));
    }
    HAULWAY_TRY(run.layout->check(run.folder, found));
    HAULWAY_ASSIGN(const auto manifest, ManifestOf(run.folder, found));
    if (!manifest.has_value()) return CheckSound(run.folder, found, options);
    entry.metadata = manifest->metadata;
    HAULWAY_TRY(CheckByManifest(run.folder, found, *manifest, options));
    if (!manifest->save.empty()) {
      entry.path =
          run.folder.PathOf(fmt::format("{}/{}", found.name, manifest->save));
    }
    return Status();
  };
  const Status status = check();
  if (!status.ok() && !IsDamage(status)) {
    return Status(status).Of(ShownName(entry.path));
  }
  entry.good = status.ok();
  entry.reason = status.message();
  return entry;
}

Result<std::vector<RunEntry>> ListRun(std::string_view uri,
                                      const RunOptions& options) {
  return OrNoMemory([&]() -> Result<std::vector<RunEntry>> {
    const CancelScope scope(options.cancel);
    HAULWAY_ASSIGN(const ReadRun run, ReadRunOf(uri, options));
    std::vector<RunEntry> entries;
    for (size_t i = run.entries.size(); i > 0; --i) {
      HAULWAY_ASSIGN(RunEntry entry, CheckEntry(run, i - 1, options));
      entries.push_back(std::move(entry));
    }
    return entries;
  });
}

Result<LatestReport> FindLatest(std::string_view uri,
                                const RunOptions& options) {
  return OrNoMemory([&]() -> Result<LatestReport> {
    const CancelScope scope(options.cancel);
    HAULWAY_ASSIGN(ReadRun run, ReadRunOf(uri, options));
    for (int listing = 1;; ++listing) {
      HAULWAY_ASSIGN(Found found, FindIn(run, options));
      if (!found.may_have_changed || listing == kMostListings) {
        return std::move(found.report);
      }
      HAULWAY_ASSIGN(ReadRun again, ReadRunOf(uri, options));
      if (std::ranges::equal(run.folder.files(), again.folder.files())) {
        return std::move(found.report);
      }
      run = std::move(again);
    }
  });
}

Status NoneIsGood(const LatestReport& report, std::string_view uri,
                  std::optional<uint64_t> step) {
  std::string text =
      step.has_value()
          ? fmt::format("the checkpoint of step {} is not good", *step)
          : "no checkpoint of the run is good";
  for (size_t i = 0; i < report.skipped.size(); ++i) {
    const SkippedEntry& entry = report.skipped[i];
    std::string_view name = entry.path;
    if (name.ends_with('/')) name.remove_suffix(1);
    text += fmt::format("{} {}: {}", i == 0 ? ":" : ";",
                        Escape(name.substr(name.rfind('/') + 1)), entry.reason);
  }
  return Status(Code::kCorrupt, text).Of(ShownName(uri));
}

}  // namespace haulway
