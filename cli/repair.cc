#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/convert.h"
#include "haulway/open.h"
#include "open_output.h"
#include "output.h"
#include "progress.h"

namespace haulway::cli {
namespace {

struct RepairVerbOptions : Options {
  std::string out, format;
  std::vector<std::string> from;
  RepairOptions repair;
};

void PrintJson(const RepairVerbOptions& options, const RepairReport& report) {
  Json json;
  json.Begin('{').Key("file").Text(ShownName(options.files.front()));
  json.Key("out").Text(ShownName(options.out));
  json.Fields(report).End('}').Print();
}

void PrintText(const RepairVerbOptions& options, const RepairReport& report) {
  const std::string& out = options.out;
  if (!report.fault.empty()) {  // The fault names the file.
    Report(out, fmt::format("{}\n", Escape(report.fault)));
  }
  for (const TakenTensor& taken : report.taken) {
    Report(out, fmt::format("taken {} from {}\n", Escape(taken.name),
                            Escape(taken.from)));
  }
  for (const LostTensor& lost : report.lost) {
    Report(out,
           fmt::format("lost {}: {}\n", Escape(lost.name), Escape(lost.why)));
  }
  for (const LeftOut& left : report.left_out) {
    Report(out, fmt::format("left out {}: {}\n", Escape(left.name),
                            Escape(left.why)));
  }
  if (out == "-") return;
  fmt::print("{}: {} kept, {} taken, {} lost; {}\n", Escape(ShownName(out)),
             report.kept.size(), report.taken.size(), report.lost.size(),
             Size(report.bytes, options.bytes));
}

int RepairFile(const RepairVerbOptions& options) {
  bool is_whole = false;
  const auto run = [&]() -> Status {
    HAULWAY_TRY(CheckOutput(options.out));
    RepairOptions repair = options.repair;
    if (!options.format.empty()) {
      HAULWAY_ASSIGN(repair.to, FormatToWriteByName(options.format));
    }
    repair.open = options.open;
    repair.open_sink = OpenOutput;
    repair.save.write.cancel = &interrupted;
    repair.save.write.progress = Progress(options.out, options.no_progress);
    HAULWAY_ASSIGN(auto file, OpenInput(options.files.front(), IoMode::kPread));
    std::vector<std::shared_ptr<const ByteSource>> others;
    for (const std::string& name : options.from) {
      HAULWAY_ASSIGN(auto other, OpenInput(name, IoMode::kPread));
      others.push_back(std::move(other));
    }
    HAULWAY_ASSIGN(const RepairReport report,
                   Repair(std::move(file), others, options.out, repair));
    is_whole = report.ok();
    options.json ? PrintJson(options, report) : PrintText(options, report);
    return Status();
  };
  const Status status = run();
  if (!status.ok()) return Fail(options, status);
  return is_whole ? kDone : kFound;
}

Runner AddRepair(CLI::App& app) {
  const auto options = MakeOptions<RepairVerbOptions>(app);
  AddBytes(app, *options);
  AddFile(app, *options);
  AddOut(app, &options->out, "File to write, or - for standard output");
  RefuseJsonBeside(app, *options, options->out);
  AddList(app, "--from", options->from,
          "Copy to take tensors from, of any format; repeatable");
  app.add_option("--to", options->format,
                 "Format; default: from the ending of OUT")
      ->check(CheckFormatToWrite);
  AddFields(app, &options->repair);
  AddKey(app, *options);
  AddAllow(app, *options);
  AddProgress(app, *options);
  return {options, [options] { return RepairFile(*options); }};
}

}  // namespace

extern const Verb kRepair = {
    "repair",
    "Save the intact tensors of a damaged or truncated file, and take the "
    "others from copies",
    "haulway repair damaged.pt whole.pt --from copy.safetensors\n"
    "haulway repair cut.safetensors rest.safetensors",
    AddRepair,
    /*cancels=*/true};

}  // namespace haulway::cli
