// Scans sources, files and folders.
//
// Design: a source is judged by itself; a path is opened and judged, and a
// folder is listed first, so that the files come in the order of their names.
// What cannot be read becomes a report of its own, because a scan of many files
// must not end at one of them; only the path that the caller named can fail.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <system_error>
#include <utility>

#include "base/no_memory.h"
#include "base/text.h"
#include "checkpoint/sharded_index.h"
#include "haulway/folder.h"
#include "haulway/open.h"
#include "haulway/verify.h"
#include "io/model_names.h"
#include "pickle/pickle_globals.h"
#include "scan/file_names.h"
#include "scan/judge.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

// Name of sources in memory. No program finds a file by this name.
constexpr std::string_view kNoName = "memory";
constexpr uint64_t kLongestIndex = kGiB;

ScanReport NotScanned(std::string file, std::string_view why) {
  ScanReport report;
  report.file = std::move(file);
  report.verdict = Verdict::kUnknown;
  report.reason = why;
  report.findings.push_back({Code::kUnsupported, std::string(why), {}});
  return report;
}

ScanReport NotRead(std::string file, const Status& status) {
  ScanReport report = NotScanned(std::move(file), status.message());
  report.findings[0].code = status.code();
  report.readable = false;
  return report;
}

// Returns the files that a shard index lists; empty if `source` is not an
// index.
std::set<std::string> ShardsOf(const std::string& path,
                               const ByteSource& source,
                               const OpenOptions& options) {
  if (!IsIndexName(path) || source.size() > kLongestIndex) {
    return {};
  }
  auto text = AllocateBuffer(source.size());
  if (!text.ok() || source.size() == 0 ||
      !source.ReadAt(0, text->mutable_bytes()).ok()) {
    return {};
  }
  const auto index =
      ParseShardedIndex(text->bytes(), Strictness::kLenient, options.limits);
  if (!index.ok()) return {};
  return {index->files.begin(), index->files.end()};
}

std::string WhySafe(const ScanReport& report) {
  if (report.pickles.empty()) return "nothing in it would be run or imported";
  std::string why =
      fmt::format("{} pickle{} name{} nothing that is not allowed",
                  report.pickles.size(), report.pickles.size() == 1 ? "" : "s",
                  report.pickles.size() == 1 ? "s" : "");
  for (const ScannedPickle& pickle : report.pickles) {
    for (const ScannedGlobal& global : pickle.globals) {
      const std::string_view needed = ImportThatAllows(global.module);
      if (needed.empty()) continue;
      return fmt::format("{}; torch.load() accepts them after `import {}`", why,
                         needed);
    }
  }
  return why;
}

// Scans one of several files. Errors become part of the report.
ScanReport ScanFound(const std::string& name,
                     Result<std::shared_ptr<const ByteSource>> source,
                     const OpenOptions& options) {
  if (!source.ok()) return NotRead(name, source.status());
  auto report = Scan(*std::move(source), options);
  if (!report.ok()) return NotRead(name, report.status());
  report->file = name;
  return std::move(*report);
}

Status ScanOneFile(const std::string& path, const SourceOptions& reading,
                   const OpenOptions& options,
                   const std::function<Status(ScanReport report)>& each) {
  HAULWAY_ASSIGN(const auto source, OpenSource(path, reading));
  HAULWAY_ASSIGN(ScanReport report, Scan(source, options));
  const std::string shown = ShownName(path);
  report.file = shown;
  HAULWAY_TRY(each(std::move(report)));
  const fs::path folder = fs::path(shown).parent_path();
  for (const std::string& shard : ShardsOf(shown, *source, options)) {
    HAULWAY_TRY(each(ScanFound((folder / shard).string(),
                               source->OpenNeighbour(shard), options)));
  }
  return Status();
}

struct Found {
  std::string path;
  std::string why_not = {};  // Empty if the file is to be scanned.
  Status status = {};        // Not OK if it cannot be read.
};

// What programs keep beside the files of a repository, not among them.
constexpr std::string_view kPassedOver = ".git";

// Returns whether `name`, the path of a file, is below such a folder.
bool IsPassedOver(std::string_view name) {
  return fmt::format("/{}", name).find(fmt::format("/{}/", kPassedOver)) !=
         std::string::npos;
}

// Returns all files below `folder`, sorted by name.
Result<std::vector<Found>> FilesBelow(const std::string& folder) {
  std::vector<Found> found;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::none,
                                      error);
  if (error) {
    return Status::FromErrno(error.value(),
                             fmt::format("cannot read {}", QuotePath(folder)));
  }
  for (const fs::recursive_directory_iterator end; it != end;
       it.increment(error)) {
    const fs::path& path = it->path();
    std::error_code ignored;
    const fs::file_status own = it->symlink_status(ignored);
    const fs::file_status led = it->status(ignored);
    if (fs::is_directory(own)) {
      // An unreadable folder would end the whole iteration, so check first.
      std::error_code closed;
      const fs::directory_iterator inside(path, closed);
      if (closed) {
        found.push_back({.path = path.string(),
                         .status = Status::FromErrno(
                             closed.value(), "the folder cannot be read")});
      }
      if (closed || path.filename() == kPassedOver) {
        it.disable_recursion_pending();
      }
    } else if (fs::is_regular_file(led)) {
      found.push_back({path.string()});
    } else if (fs::is_symlink(own)) {
      found.push_back({path.string(), fs::is_directory(led)
                                          ? "a link to a folder"
                                          : "a link to no regular file"});
    } else {
      found.push_back({path.string(), "not a regular file"});
    }
    if (error) break;
  }
  if (error) {
    return Status::FromErrno(error.value(),
                             fmt::format("cannot walk {}", QuotePath(folder)));
  }
  std::ranges::sort(found, {}, &Found::path);
  return found;
}

// Returns all files below a remote folder, like FilesBelow().
Result<std::vector<Found>> ObjectsBelow(const std::string& folder,
                                        const RemoteOptions& remote) {
  HAULWAY_ASSIGN(const auto names, ListFiles(folder, remote));
  std::vector<Found> found;
  for (const std::string& name : names) found.push_back({name});
  return found;
}

Status ScanFolder(const std::string& folder, const SourceOptions& reading,
                  const OpenOptions& options,
                  const std::function<Status(ScanReport report)>& each,
                  const std::function<bool(std::string_view name)>& wanted) {
  const auto path = LocalPath(folder);
  HAULWAY_ASSIGN(const std::vector<Found> found,
                 path.has_value() ? FilesBelow(*path)
                                  : ObjectsBelow(folder, reading.remote));
  if (found.empty()) {
    return Status(Code::kNotFound,
                  fmt::format("no files in folder {}", QuotePath(folder)));
  }
  const std::string_view top = path.has_value() ? *path : folder;
  for (const Found& file : found) {
    std::string_view name = file.path;
    if (name.starts_with(top)) name.remove_prefix(top.size());
    name.remove_prefix(std::min(name.find_first_not_of('/'), name.size()));
    if (IsPassedOver(name) || (wanted != nullptr && !wanted(name))) continue;
    if (!file.status.ok()) {
      HAULWAY_TRY(each(NotRead(file.path, file.status)));
      continue;
    }
    if (!file.why_not.empty()) {
      HAULWAY_TRY(each(NotScanned(file.path, file.why_not)));
      continue;
    }
    auto source = OpenSource(file.path, reading);
    HAULWAY_TRY(each(ScanFound(file.path, source, options)));
    if (!source.ok()) continue;
    // The other shards are in the folder, and scanned as files of it.
    for (const std::string& shard : ShardsOf(file.path, **source, options)) {
      if (!scan::LeavesFolder(shard)) continue;
      HAULWAY_TRY(each(NotScanned(
          shard, fmt::format("a shard that {} names outside of its folder",
                             Quote(file.path)))));
    }
  }
  return Status();
}

}  // namespace

std::string_view Name(Verdict verdict) {
  switch (verdict) {
    case Verdict::kSafe:
      return "SAFE";
    case Verdict::kUnknown:
      return "UNKNOWN";
    case Verdict::kUnsafe:
      return "UNSAFE";
  }
  return "";
}

Result<ScanReport> Scan(std::shared_ptr<const ByteSource> source,
                        const OpenOptions& options) {
  if (source == nullptr) {
    return Status(Code::kInvalidArgument, "source is null");
  }
  const std::string name(source->name());
  const auto run = [&]() -> Result<ScanReport> {
    ScanReport report;
    report.file = name;
    scan::Place place;
    if (name != kNoName) place.name = name;
    HAULWAY_TRY(scan::Judge(options, &report).Content(source, place));
    if (report.verdict == Verdict::kSafe) report.reason = WhySafe(report);
    return report;
  };
  auto report = OrNoMemory(run);
  if (!report.ok()) return std::move(report).status().Of(name);
  return report;
}

Status ScanPath(const std::string& path, const OpenOptions& options,
                const std::function<Status(ScanReport report)>& each) {
  return ScanPath(path, options, each, {}, nullptr);
}

Status ScanPath(const std::string& path, const OpenOptions& options,
                const std::function<Status(ScanReport report)>& each,
                const RemoteOptions& remote,
                const std::function<bool(std::string_view name)>& wanted) {
  const SourceOptions reading{.io = IoMode::kPread, .remote = remote};
  return OrNoMemory([&] {
    return IsFolder(path) ? ScanFolder(path, reading, options, each, wanted)
                          : ScanOneFile(path, reading, options, each);
  });
}

}  // namespace haulway
