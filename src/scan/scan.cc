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
#include "scan/file_names.h"
#include "scan/judge.h"

namespace haulway {

namespace {

namespace fs = std::filesystem;

// Name of sources in memory. No program finds a file by this name.
constexpr std::string_view kNoName = "memory";
constexpr uint64_t kLongestIndex = kGiB;

ScanReport NotRead(std::string file, std::string_view why) {
  ScanReport report;
  report.file = std::move(file);
  report.verdict = Verdict::kUnknown;
  report.reason = why;
  report.findings.push_back({Code::kUnsupported, std::string(why), {}});
  return report;
}

// Returns the files that a shard index lists; empty if `source` is not an
// index.
std::set<std::string> ShardsOf(const std::string& path,
                               const ByteSource& source,
                               const OpenOptions& options) {
  if (!path.ends_with(kIndexSuffix) || source.size() > kLongestIndex) {
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

// Scans one of several files. Errors become part of the report.
ScanReport ScanFound(const std::string& name,
                     Result<std::shared_ptr<const ByteSource>> source,
                     const OpenOptions& options) {
  if (!source.ok()) return NotRead(name, source.status().message());
  auto report = Scan(*std::move(source), options);
  if (!report.ok()) return NotRead(name, report.status().message());
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
  std::string why_not;  // Empty if the file is to be scanned.
};

// Returns all files below `folder`, sorted by name.
Result<std::vector<Found>> FilesBelow(const std::string& folder) {
  std::vector<Found> found;
  std::error_code error;
  fs::recursive_directory_iterator it(folder, fs::directory_options::none,
                                      error);
  if (error) {
    return Status::FromErrno(error.value(),
                             fmt::format("cannot read {}", Quote(folder)));
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
        found.push_back({path.string(), "the folder cannot be read"});
        it.disable_recursion_pending();
      }
    } else if (fs::is_regular_file(led)) {
      found.push_back({path.string(), {}});
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
                             fmt::format("cannot walk {}", Quote(folder)));
  }
  std::ranges::sort(found, {}, &Found::path);
  return found;
}

// Returns all files below a remote folder, like FilesBelow().
Result<std::vector<Found>> ObjectsBelow(const std::string& folder,
                                        const RemoteOptions& remote) {
  HAULWAY_ASSIGN(const auto names, ListFiles(folder, remote));
  std::vector<Found> found;
  for (const std::string& name : names) found.push_back({name, {}});
  return found;
}

Status ScanFolder(const std::string& folder, const SourceOptions& reading,
                  const OpenOptions& options,
                  const std::function<Status(ScanReport report)>& each) {
  const auto path = LocalPath(folder);
  HAULWAY_ASSIGN(const std::vector<Found> found,
                 path.has_value() ? FilesBelow(*path)
                                  : ObjectsBelow(folder, reading.remote));
  if (found.empty()) {
    return Status(Code::kNotFound,
                  fmt::format("no files in folder {}", Quote(folder)));
  }
  for (const Found& file : found) {
    if (!file.why_not.empty()) {
      HAULWAY_TRY(each(NotRead(file.path, file.why_not)));
      continue;
    }
    auto source = OpenSource(file.path, reading);
    HAULWAY_TRY(each(ScanFound(file.path, source, options)));
    if (!source.ok()) continue;
    // The other shards are in the folder, and scanned as files of it.
    for (const std::string& shard : ShardsOf(file.path, **source, options)) {
      if (!scan::LeavesFolder(shard)) continue;
      HAULWAY_TRY(each(NotRead(
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
    if (report.verdict == Verdict::kSafe) {
      report.reason =
          report.pickles.empty()
              ? "nothing in it would be run or imported"
              : fmt::format("{} pickle{} name{} nothing that is not allowed",
                            report.pickles.size(),
                            report.pickles.size() == 1 ? "" : "s",
                            report.pickles.size() == 1 ? "s" : "");
    }
    return report;
  };
  auto report = OrNoMemory(run);
  if (!report.ok()) return std::move(report).status().Of(name);
  return report;
}

Status ScanPath(const std::string& path, const OpenOptions& options,
                const std::function<Status(ScanReport report)>& each) {
  return ScanPath(path, options, each, {});
}

Status ScanPath(const std::string& path, const OpenOptions& options,
                const std::function<Status(ScanReport report)>& each,
                const RemoteOptions& remote) {
  const SourceOptions reading{.io = IoMode::kPread, .remote = remote};
  return OrNoMemory([&] {
    return IsFolder(path) ? ScanFolder(path, reading, options, each)
                          : ScanOneFile(path, reading, options, each);
  });
}

}  // namespace haulway
