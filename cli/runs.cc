// Design: two verbs for the checkpoints of a training run. A script asks
// `latest` where to resume, so the path alone is on standard output, and the
// exit codes tell "nothing is there yet" from "nothing that is there is good".

#include "haulway/runs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "command.h"
#include "haulway/folder.h"
#include "output.h"

namespace haulway::cli {
namespace {

struct RunVerbOptions : Options {
  std::string dir;
  RunOptions run;
  bool sizes = false;
  PruneRunOptions prune{.run = {}, .keep = 0};
};

RunOptions RunOf(const RunVerbOptions& options) {
  RunOptions run = options.run;
  run.threads = options.threads;
  run.remote = Remote();
  run.cancel = &interrupted;
  return run;
}

void PrintLatest(const RunVerbOptions& options, const LatestReport& report) {
  if (options.json) {
    Json().Value(report).Print();
    return;
  }
  if (report.entry.has_value()) fmt::print("{}\n", Escape(report.entry->path));
  if (!report.entry.has_value() && !report.is_empty()) return;
  for (const SkippedEntry& entry : report.skipped) {
    fmt::print(stderr, "haulway: passed over {}: {}\n",
               Escape(ShownName(entry.path)), Escape(entry.reason));
  }
}

// Returns whether a local folder is there; names in a bucket have none.
bool IsThere(const std::string& dir) {
  const auto path = LocalPath(dir);
  std::error_code error;
  return !path.has_value() || path->empty() ||
         std::filesystem::exists(*path, error);
}

int Latest(const RunVerbOptions& options) {
  RunOptions run = RunOf(options);
  run.digests = !options.sizes;
  const auto report = FindLatest(options.dir, run);
  if (!report.ok()) return Fail(options, report.status());
  PrintLatest(options, *report);
  if (report->entry.has_value()) return kDone;
  if (options.json) return report->is_empty() ? kNoMatch : kFound;
  if (!report->is_empty()) {
    (void)Fail(options, NoneIsGood(*report, options.dir));
    return kFound;
  }
  fmt::print(stderr, "haulway: there is no {}; of {}\n",
             IsThere(options.dir) ? "checkpoint" : "such folder",
             Escape(ShownName(options.dir)));
  return kNoMatch;
}

int Prune(const RunVerbOptions& options) {
  PruneRunOptions prune = options.prune;
  prune.run = RunOf(options);
  const auto report = PruneRun(options.dir, prune);
  if (!report.ok()) return Fail(options, report.status());
  if (options.json) {
    Json().Value(*report).Print();
    return report->failed ? kFound : kDone;
  }
  for (const std::string& path : report->removed) {
    fmt::print("{} {}\n", prune.dry_run ? "would remove" : "removed",
               Escape(ShownName(path)));
  }
  for (const std::string& path : report->kept) {
    fmt::print("kept {}\n", Escape(ShownName(path)));
  }
  for (const SkippedEntry& entry : report->refused) {
    fmt::print("refused {}: {}\n", Escape(ShownName(entry.path)),
               Escape(entry.reason));
  }
  return report->failed ? kFound : kDone;
}

void AddRun(CLI::App& app, RunVerbOptions& options) {
  AddThreads(app, options);
  AddRemote(app);
  app.add_option("DIR", options.dir,
                 "Folder of the checkpoints, a path or an s3:// name")
      ->required();
  OneOf(app.add_option(
            "--layout", options.run.layout,
            "The program that writes them; by default as the names say: " +
                fmt::format("{}", fmt::join(kRunLayoutWords, ", "))),
        {std::begin(kRunLayoutWords), std::end(kRunLayoutWords)})
      ->type_name("NAME");
}

Runner AddLatest(CLI::App& app) {
  const auto options = MakeOptions<RunVerbOptions>(app);
  AddRun(app, *options);
  app.add_flag("--sizes", options->sizes,
               "Compare names and sizes only, not digests and checksums");
  return {options, [options] { return Latest(*options); }};
}

Runner AddPrune(CLI::App& app) {
  const auto options = MakeOptions<RunVerbOptions>(app);
  AddRun(app, *options);
  app.add_option("--keep", options->prune.keep,
                 "How many good checkpoints to keep, at least 1")
      ->required()
      ->check(CheckPositive)
      ->type_name("N");
  app.add_flag("--dry-run", options->prune.dry_run, "Remove nothing");
  return {options, [options] { return Prune(*options); }};
}

}  // namespace

extern const Verb kLatest = {
    "latest",
    "Print the newest whole checkpoint of a training run; exit 1 if none is "
    "whole, 3 if there is none",
    "haulway latest run\n"
    "haulway latest s3://bucket/run --sizes --json\n"
    "haulway latest outputs --layout trainer",
    AddLatest, true};

extern const Verb kPrune = {
    "prune",
    "Remove old checkpoints of a training run; the newest whole ones stay; "
    "exit 1 if one could not be removed",
    "haulway prune run --keep 3\n"
    "haulway prune outputs --keep 2 --dry-run",
    AddPrune, true};

}  // namespace haulway::cli
