#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "command.h"
#include "haulway/open.h"
#include "haulway/pickle.h"
#include "haulway/sink.h"
#include "haulway/verify.h"
#include "is_read.h"
#include "output.h"
#include "sarif.h"

namespace haulway::cli {
namespace {

struct ScanOptions : Options {
  bool verbose = false;
  std::string sarif;
};

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
  fmt::print("{:<7} {}\n", Name(report.verdict), Escape(report.file));
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

int ScanFiles(const ScanOptions& options) {
  Verdict worst = Verdict::kSafe;
  int failed = kDone;
  bool is_overwritten = false;
  SarifLog log;
  const auto each = [&](const ScanReport& report) -> Status {
    is_overwritten = is_overwritten || IsSame(report.file, options.sarif);
    worst = std::max(worst, report.verdict);
    log.Add(report);
    if (options.json) {
      Json().Value(report).Print();
    } else if (options.sarif != "-") {
      PrintReport(options, report);
    }
    return Status();
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
      status = ScanPath(path, options.open, each, Remote());
    }
    if (!status.ok()) {
      log.AddFailure(status);
      failed = std::max(failed, Fail(options, status));
    }
  }
  if (!options.sarif.empty()) {
    const Status written = is_overwritten
                               ? WouldOverwrite(options.sarif)
                               : WriteText(options.sarif, log.Text());
    if (!written.ok()) return Fail(options, written);
  }
  if (worst == Verdict::kUnsafe) return kFound;
  if (failed != kDone) return failed;
  return worst == Verdict::kUnknown ? kFailed : kDone;
}

Runner AddScan(CLI::App& app) {
  const auto options = MakeOptions<ScanOptions>(app);
  AddBytes(app, *options);
  app.add_flag("-v,--verbose", options->verbose,
               "Print every mention of a global, and a count of each opcode");
  app.add_option("--sarif", options->sarif,
                 "Also write the findings as SARIF 2.1.0, for services that "
                 "scan code; - prints them instead of the report")
      ->type_name("FILE");
  RefuseJsonBeside(app, *options, options->sarif);
  AddAllow(app, *options);
  AddFiles(app, *options);
  return {options, [options] { return ScanFiles(*options); }};
}

}  // namespace

extern const Verb kScan = {
    "scan",
    "Report whether files would run code in torch, pickle, joblib or NumPy; "
    "runs nothing",
    "haulway scan downloaded.pt -v\n"
    "haulway scan models/ --allow mymodel.Config\n"
    "haulway scan models/ --sarif found.sarif\n"
    "Exit codes: 0 SAFE, 1 UNSAFE, 2 UNKNOWN; the worst one for several files.",
    AddScan};

}  // namespace haulway::cli
