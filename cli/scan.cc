// Design: the library scans, file by file; this prints each report when it
// comes and keeps only totals. The names that pickles contain are noted for
// --allow, so that a misspelled one is told at the end. Other verbs that have
// --allow call TellUnusedNames() after they ran, which scans what they opened:
// their readers keep no list of the names that they met, and a scan reads no
// tensors.

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/open.h"
#include "haulway/pickle.h"
#include "haulway/select.h"
#include "haulway/sink.h"
#include "haulway/verify.h"
#include "is_read.h"
#include "output.h"
#include "progress.h"
#include "sarif.h"
#include "tell.h"

namespace haulway::cli {
namespace {

struct ScanOptions : Options {
  bool verbose = false, quiet = false;
  std::string sarif;
};

// Globals that pickles name, and whether they are allowed.
using Names = std::map<std::string, bool>;

void AddNames(const ScanReport& report, Names* names) {
  for (const ScannedPickle& pickle : report.pickles) {
    for (const ScannedGlobal& global : pickle.globals) {
      names->emplace(fmt::format("{}.{}", global.module, global.name),
                     global.allowed);
    }
  }
}

// What a run found.
struct Totals {
  std::array<uint64_t, 3> files = {};  // By verdict.
  bool is_unread = false;              // A file could not be read.
  Names names;                         // Filled for --allow.
  // Paths within the folders that were walked; filled for --exclude.
  std::set<std::string> paths;

  void Add(const ScanOptions& options, const ScanReport& report) {
    ++files[static_cast<size_t>(report.verdict)];
    is_unread = is_unread || !report.readable;
    if (!options.open.allowed_globals.empty()) AddNames(report, &names);
  }
  uint64_t Of(Verdict verdict) const {
    return files[static_cast<size_t>(verdict)];
  }
};

std::string Coloured(std::string_view word, Verdict verdict) {
  constexpr Finds kFinds[] = {Finds::kNothing, Finds::kUnknown, Finds::kFault};
  return Coloured(word, kFinds[static_cast<size_t>(verdict)]);
}

void PrintPickle(const ScanOptions& options, const ScannedPickle& pickle) {
  fmt::print("  {}: protocol {}, {} at byte {}\n",
             pickle.member.empty() ? "pickle" : Escape(pickle.member),
             pickle.protocol, Size(pickle.bytes, options.bytes), pickle.offset);
  struct Mentions {
    uint64_t count = 0;
    uint64_t first = 0;
    bool allowed = true;
  };
  std::map<std::string, Mentions> names;
  Table table("<<>>");
  table.Add({"    verdict", "global", "times", "first byte"});
  const auto add = [&table](const std::string& name, const Mentions& m) {
    table.Add({m.allowed ? "    allowed" : "    NOT ALLOWED", name,
               std::to_string(m.count), std::to_string(m.first)});
  };
  for (const ScannedGlobal& global : pickle.globals) {
    const std::string name = Escape(global.module + "." + global.name);
    if (options.verbose) {
      add(name, {1, global.byte, global.allowed});
      continue;
    }
    Mentions& mentions = names[name];
    if (mentions.count++ == 0) mentions.first = global.byte;
    mentions.allowed = mentions.allowed && global.allowed;
  }
  for (const auto& [name, mentions] : names) add(name, mentions);
  if (!pickle.globals.empty()) table.Print();
  if (!options.verbose) return;
  for (const auto& [opcode, count] : pickle.opcodes) {
    fmt::print("    {:>10} {}\n", count, PickleOpcodeName(opcode));
  }
}

void PrintReport(const ScanOptions& options, const ScanReport& report) {
  const std::string word = fmt::format("{:<7}", Name(report.verdict));
  fmt::print("{} {}\n", Coloured(word, report.verdict), Escape(report.file));
  if (!report.safe() || options.verbose) {
    fmt::print("  {}\n", Escape(report.reason));
  }
  for (const ScannedPickle& pickle : report.pickles) {
    PrintPickle(options, pickle);
  }
  // The reason is the first of the worst findings; print the others.
  std::vector<Finding> others;
  for (const Finding& finding : report.findings) {
    if (finding.message != report.reason) others.push_back(finding);
  }
  PrintFindings(others);
}

// Prints how many files have each verdict.
void PrintTotals(const Totals& totals) {
  std::string line;
  uint64_t all = 0;
  for (const Verdict verdict :
       {Verdict::kSafe, Verdict::kUnknown, Verdict::kUnsafe}) {
    if (totals.Of(verdict) == 0) continue;
    line += fmt::format("{}{} {}", line.empty() ? ": " : ", ",
                        totals.Of(verdict), Coloured(Name(verdict), verdict));
    all += totals.Of(verdict);
  }
  if (all > 1) fmt::print("{}{}\n", Counted(all, "file"), line);
}

// Says which of the names that --allow gives are not among those of pickles.
void TellUnusedNames(const OpenOptions& open, const Names& names) {
  for (const std::string& name : open.allowed_globals) {
    if (names.contains(name)) continue;
    const std::string_view last =
        std::string_view(name).substr(name.rfind('.'));
    const auto meant = std::ranges::find_if(names, [&](const auto& met) {
      return !met.second && met.first.ends_with(last);
    });
    Tell(fmt::format(
        "haulway: no pickle contains the name --allow {}{}\n", Escape(name),
        meant == names.end()
            ? ""
            : fmt::format("; did you mean {}?", Escape(meant->first))));
  }
}

// Says which --allow and --exclude had no effect: most likely they are
// misspelled.
void TellUnused(const ScanOptions& options, const Totals& totals) {
  TellUnusedNames(options.open, totals.names);
  const std::vector<std::string_view> paths(totals.paths.begin(),
                                            totals.paths.end());
  for (const std::string& pattern : options.exclude) {
    const auto filter = NameFilter::Make({.exclude = {pattern}});
    if (filter.ok() && !filter->CheckUsed(paths).ok()) {
      Tell(fmt::format("haulway: no file matches --exclude {}\n",
                       Escape(pattern)));
    }
  }
}

// Returns the exit code of an input that could not be read.
int FailUnread(const ScanOptions& options, const Status& status) {
  const int exit = Fail(options, status);
  return exit == kNoMatch || exit == kInterrupted ? exit : kUnread;
}

int ScanFiles(const ScanOptions& options) {
  const auto chosen = NameFilter::Make({.exclude = options.exclude});
  if (!chosen.ok()) return Fail(options, chosen.status());
  Totals totals;
  int failed = kDone;
  bool is_overwritten = false;
  SarifLog log;
  const auto count = CountedFiles(options.no_progress);
  const auto each = [&](const ScanReport& report) -> Status {
    is_overwritten = is_overwritten || IsSame(report.file, options.sarif);
    totals.Add(options, report);
    log.Add(report);
    if (count) count("");
    if (options.json) {
      Json().Value(report).Print();
    } else if (options.sarif != "-" && !(options.quiet && report.safe())) {
      PrintReport(options, report);
    }
    if (count) count(report.file);
    return Status();
  };
  const auto wanted = [&](std::string_view name) {
    if (!options.exclude.empty()) totals.paths.emplace(name);
    return chosen->Matches(name);
  };
  for (const std::string& path : options.files) {
    Status status;
    if (path == "-") {
      const auto source = OpenInput(path);
      if (!source.ok()) {
        status = source.status();
      } else {
        auto report = Scan(*source, options.open);
        status = report.ok() ? each(*report) : std::move(report).status();
      }
    } else {
      status = ScanPath(path, options.open, each, Remote(), wanted);
    }
    if (count) count("");
    if (!status.ok()) {
      log.AddFailure(status);
      failed = std::max(failed, FailUnread(options, status));
    }
  }
  if (!options.sarif.empty()) {
    const Status written = is_overwritten
                               ? WouldOverwrite(options.sarif)
                               : WriteText(options.sarif, log.Text());
    if (!written.ok()) return Fail(options, written);
  }
  if (!options.json && !options.quiet && options.sarif != "-") {
    PrintTotals(totals);
  }
  TellUnused(options, totals);
  if (totals.Of(Verdict::kUnsafe) > 0) return kFound;
  if (failed != kDone) return failed;
  if (totals.is_unread) return kUnread;
  return totals.Of(Verdict::kUnknown) > 0 ? kFailed : kDone;
}

}  // namespace

void TellUnusedNames(const Options& options) {
  if (options.open.allowed_globals.empty()) return;
  std::set<std::string>& paths = OpenedNames();
  paths.insert(options.files.begin(), options.files.end());
  Names names;
  bool is_read = false;
  bool is_unread = false;
  const auto each = [&](const ScanReport& report) {
    is_read = is_read || report.readable;
    is_unread = is_unread || !report.readable;
    AddNames(report, &names);
    return Status();
  };
  for (const std::string& path : paths) {
    const Status status = path == "-"
                              ? Status(Code::kUnsupported, "read already")
                              : ScanPath(path, options.open, each, Remote());
    // A download has another name when it is complete.
    is_unread = is_unread || (!status.ok() && status.code() != Code::kNotFound);
  }
  if (!is_read || is_unread) return;
  TellUnusedNames(options.open, names);
}

namespace {

Runner AddScan(CLI::App& app) {
  const auto options = MakeOptions<ScanOptions>(app);
  AddBytes(app, *options);
  app.add_flag("-v,--verbose", options->verbose,
               "Print every mention of a global, and a count of each opcode");
  app.add_flag("-q,--quiet", options->quiet,
               "Print only files that are not SAFE");
  AddExclude(app, *options,
             "Leave out files of a folder whose path in it matches this glob "
             "or /regex/; .git is always left out; repeatable");
  app.add_option("--sarif", options->sarif,
                 "Also write the findings as SARIF 2.1.0, for services that "
                 "scan code; - prints them instead of the report")
      ->type_name("FILE");
  RefuseJsonBeside(app, *options, options->sarif);
  AddAllow(app, *options);
  AddProgress(app, *options);
  // Without what chooses tensors: every file is scanned by itself.
  AddFields(app, &options->open,
            {"part", "weights", "replicas", "split_layers"});
  AddRemote(app);
  app.add_option("FILE", options->files,
                 "Files, folders, URLs, or - for standard input")
      ->required();
  return {options, [options] { return ScanFiles(*options); }};
}

}  // namespace

extern const Verb kScan = {
    "scan",
    "Report whether files would run code in torch, pickle, joblib or NumPy; "
    "runs nothing",
    "haulway scan downloaded.pt -v\n"
    "haulway scan models/ --allow mymodel.Config\n"
    "haulway scan . -q --exclude 'docs/*' --sarif found.sarif\n"
    "Exit codes: 0 SAFE, 2 UNKNOWN, 5 not readable, 1 UNSAFE; the last of "
    "these for several files.",
    AddScan,
    /*cancels=*/false,
    /*alias=*/nullptr,
    /*tells_unused_names=*/false};

}  // namespace haulway::cli
