#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/compare.h"
#include "haulway/open.h"
#include "haulway/select.h"
#include "no_match.h"
#include "output.h"
#include "progress.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct DiffVerbOptions : Options {
  bool quiet = false;
  DiffOptions diff;
};

Result<std::shared_ptr<const Checkpoint>> Open(
    Result<std::shared_ptr<const ByteSource>> input, const Options& options) {
  HAULWAY_ASSIGN(auto source, std::move(input));
  return OpenCheckpoint(std::move(source), options.open);
}

void PrintJson(const DiffVerbOptions& options, const DiffReport& report) {
  Json json;
  json.Begin('{').Key("a").Text(ShownName(options.files[0]));
  json.Key("b").Text(ShownName(options.files[1]));
  json.Fields(report).End('}').Print();
}

std::string Sides(const ChangedTensor& tensor) {
  return fmt::format("{} {} -> {} {}", Name(tensor.a_dtype),
                     Shape(tensor.a_shape), Name(tensor.b_dtype),
                     Shape(tensor.b_shape));
}

std::vector<std::string> RowOf(const ChangedTensor& tensor) {
  std::vector<std::string> row = {"~ " + Escape(tensor.name),
                                  std::string(Name(tensor.what))};
  if (!tensor.numbers.has_value()) {
    row.push_back(
        tensor.what == Difference::kBytes
            ? fmt::format("{} {}", Name(tensor.a_dtype), Shape(tensor.a_shape))
            : Sides(tensor));
    row.resize(7);
    return row;
  }
  const NumberDifference& numbers = *tensor.numbers;
  row.push_back(fmt::format("{} of {}", numbers.differing, numbers.elements));
  row.push_back(fmt::format("{:.6g}", numbers.max_abs));
  row.push_back(fmt::format("{:.6g}", numbers.mean_abs));
  row.push_back(fmt::format("{}", numbers.nan));
  row.push_back(fmt::format("{}", numbers.inf));
  return row;
}

void PrintText(const DiffVerbOptions& options, const DiffReport& report) {
  for (const std::string& name : report.removed) {
    fmt::print("- {}\n", Escape(name));
  }
  for (const std::string& name : report.added) {
    fmt::print("+ {}\n", Escape(name));
  }
  if (!report.changed.empty()) {
    Table table("<<<>>>>");
    table.Add(
        {"  name", "differs in", "elements", "max", "mean", "nan", "inf"});
    for (const ChangedTensor& tensor : report.changed) table.Add(RowOf(tensor));
    table.Print();
  }
  fmt::print(
      "{}: {} added, {} removed, {} changed, {} the same; {} compared in "
      "{:.3f} s\n",
      report.equal() ? "equal" : "different", report.added.size(),
      report.removed.size(), report.changed.size(), report.same,
      Size(report.compared_bytes, options.bytes), report.seconds);
}

int DiffFiles(const DiffVerbOptions& options) {
  bool is_equal = false, is_empty = false;
  const auto run = [&]() -> Status {
    HAULWAY_ASSIGN(
        const auto a,
        Open(OpenModel(options, options.files[0], IoMode::kPread), options));
    HAULWAY_TRY(CompareSigned(SignatureScope::kAuto));
    // --join is about the first one.
    DiffVerbOptions second = options;
    second.join.clear();
    HAULWAY_ASSIGN(
        const auto b,
        Open(OpenModel(second, options.files[1], IoMode::kPread), options));
    HAULWAY_TRY(CompareSigned(SignatureScope::kAuto));
    HAULWAY_ASSIGN(const NameFilter names, NameFilter::Make(NamesOf(options)));
    HAULWAY_TRY(names.CheckUsed({a.get(), b.get()}));
    DiffOptions diff = options.diff;
    if (!names.all()) {
      diff.select = [&](std::string_view name) { return names.Matches(name); };
    }
    diff.cancel = &interrupted;
    diff.progress = Progress("diff", options.no_progress || options.quiet);
    HAULWAY_ASSIGN(const DiffReport report, Diff(*a, *b, diff));
    is_equal = report.equal();
    is_empty = !names.all() && is_equal && report.same == 0;
    if (options.json) {
      PrintJson(options, report);
    } else if (!options.quiet) {
      PrintText(options, report);
    }
    return Status();
  };
  const Status status = run();
  if (!status.ok()) return Fail(options, status);
  if (is_empty) return NoMatch(options.files[0]);
  return is_equal ? kDone : kFound;
}

Runner AddDiff(CLI::App& app) {
  const auto options = MakeOptions<DiffVerbOptions>(app);
  AddBytes(app, *options);
  AddLenient(app, *options);
  AddDequantize(app, *options);
  options->files.resize(2);
  app.add_option("A", options->files[0],
                 "A file, a model's folder, a URL, or - for standard input")
      ->required();
  app.add_option("B", options->files[1], "Another checkpoint, of any format")
      ->required();
  AddNaming(app, *options);
  AddRemote(app);
  AddFilters(app, *options);
  AddFields(app, &options->diff);
  app.add_flag("-q,--quiet", options->quiet,
               "Print nothing; only set the exit code");
  AddKey(app, *options);
  AddAllow(app, *options);
  AddProgress(app, *options);
  return {options, [options] { return DiffFiles(*options); }};
}

}  // namespace

extern const Verb kDiff = {
    "diff", "Compare the tensors of two checkpoints; exit 1 if they differ",
    "haulway diff model.pt model.safetensors\n"
    "haulway diff old/ new/ --include 'layers.0.*' --json\n"
    "haulway diff model.pt model-bf16.safetensors --ignore-dtype --rtol 0.01",
    AddDiff,
    /*cancels=*/true};

}  // namespace haulway::cli
