// Design: the verb makes options of the library from those of the command line,
// opens the source as they say, and prints what the library's Convert()
// reports: as JSON all of it, as text what a user may not expect, in notes. All
// files are written by Convert(), but for the proof. That is opened before, so
// that a proof that cannot be written is refused before the conversion; it is
// written after, and so is there only if the new files are.

#include "haulway/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "command.h"
#include "field_options.h"
#include "haulway/folder.h"
#include "haulway/open.h"
#include "haulway/select.h"
#include "is_read.h"
#include "open_output.h"
#include "output.h"
#include "progress.h"
#include "signature.h"
#include "values.h"

namespace haulway::cli {
namespace {

struct ConvertVerbOptions : Options {
  std::string out;
  std::string format, dtype, proof;  // Empty: unchanged, and no proof.
  std::vector<std::string> rename, set;
  ConvertOptions convert;
};

// --json prints all notes.
constexpr size_t kNotesShown = 20;

Result<ConvertOptions> OptionsOf(const ConvertVerbOptions& options) {
  ConvertOptions convert = options.convert;
  if (!options.format.empty()) {
    HAULWAY_ASSIGN(convert.to, FormatToConvertTo(options.format));
  }
  if (!options.dtype.empty()) convert.dtype = ParseDType(options.dtype);
  for (const std::string& text : options.rename) {
    const auto [pattern, replacement] = SplitPair(text);
    HAULWAY_ASSIGN(Renaming rule, MakeRenaming(pattern, replacement));
    convert.rename.push_back(std::move(rule));
  }
  for (const std::string& text : options.set) {
    auto [key, value] = SplitPair(text);
    convert.metadata.push_back({std::move(key), std::move(value)});
  }
  HAULWAY_ASSIGN(NameFilter names, NameFilter::Make(NamesOf(options)));
  convert.names = std::make_shared<const NameFilter>(std::move(names));
  convert.open = OpenOutput;
  convert.proof = !options.proof.empty();
  convert.save.write.cancel = &interrupted;
  convert.save.write.progress = Progress(options.out, options.no_progress);
  return convert;
}

Status WriteProof(const ConvertVerbOptions& options,
                  const ConvertReport& report, ByteSink& sink) {
  Json json;
  json.Begin('{').Key("file").Text(ShownName(options.files.front()));
  json.Key("out").Text(ShownName(options.out));
  const std::string text =
      json.Key("proof").Value(report.proof).End('}').text() + "\n";
  HAULWAY_TRY(sink.WriteAt(0, std::as_bytes(std::span(text))));
  return sink.Commit(text.size());
}

void PrintJson(const ConvertVerbOptions& options, const ConvertReport& report) {
  Json json;
  json.Begin('{').Key("file").Text(ShownName(options.files.front()));
  json.Key("out").Text(ShownName(options.out));
  json.Fields(report).End('}').Print();
}

void PrintNotes(const std::string& out, const std::vector<std::string>& notes) {
  const size_t shown = std::min(notes.size(), kNotesShown);
  for (size_t i = 0; i < shown; ++i) Report(out, notes[i] + "\n");
  if (shown < notes.size()) {
    Report(out, fmt::format("and {} more; --json lists them\n",
                            notes.size() - shown));
  }
}

// Returns whether a model's folder became a file whose name could be that of a
// folder.
bool IsMeantAsFolder(const ConvertVerbOptions& options) {
  return IsFolder(options.files.front()) && options.out != "-" &&
         !IsFolder(options.out) &&
         options.out.find('.', options.out.rfind('/') + 1) == std::string::npos;
}

void PrintText(const ConvertVerbOptions& options, const ConvertReport& report) {
  if (options.out != "-") {
    fmt::print("{}: {}, {} in {:.3f} s{}{}\n", Escape(ShownName(options.out)),
               Counted(report.tensors, "tensor"),
               Size(report.bytes, options.bytes), report.write.seconds,
               report.files.size() == 1
                   ? ""
                   : fmt::format(", {} files", report.files.size()),
               report.proof.empty()
                   ? ""
                   : fmt::format("; {} digests agree", report.proof.size()));
  }
  std::vector<std::string> notes;
  if (report.dequantized != 0) {
    notes.push_back(fmt::format("dequantized {} ({})",
                                Counted(report.dequantized, "weight"),
                                Escape(report.quantization)));
  }
  if (report.merged != 0) {
    notes.push_back(fmt::format("merged adapters into {}",
                                Counted(report.merged, "weight")));
  }
  if (report.ruled != 0) {
    notes.push_back(
        fmt::format("rules made {}", Counted(report.ruled, "tensor")));
  }
  if (!report.resumed.empty()) {
    notes.push_back(fmt::format("an earlier run had written {}",
                                Counted(report.resumed.size(), "file")));
  }
  if (IsMeantAsFolder(options)) {
    notes.push_back(
        "it is a file: end its name with '/' to write a folder with the other "
        "files of the model");
  }
  if (!report.copied.empty()) {
    notes.push_back(fmt::format("copied {} of the model",
                                Counted(report.copied.size(), "other file")));
  }
  for (const std::string& path : report.removed) {
    notes.push_back(fmt::format("removed {}: a file of an older checkpoint",
                                Escape(ShownName(path))));
  }
  for (const TieNote& tie : report.ties) {
    notes.push_back(fmt::format("{} {}: it shares memory with {}",
                                tie.dropped ? "dropped" : "copied",
                                Escape(tie.name), Escape(tie.with)));
  }
  for (const LeftOut& left : report.left_out) {
    notes.push_back(
        fmt::format("left out {}: {}", Escape(left.name), Escape(left.why)));
  }
  PrintNotes(options.out, notes);
}

// Returns where a name leads; the file need not exist.
std::filesystem::path PlaceOf(const std::string& name) {
  std::error_code failed;
  auto place = std::filesystem::weakly_canonical(name, failed);
  return failed ? std::filesystem::path(name) : place;
}

int ConvertFile(const ConvertVerbOptions& options) {
  const std::string& file = options.files.front();
  const auto run = [&]() -> Status {
    HAULWAY_TRY(CheckOutput(options.out));
    HAULWAY_ASSIGN(const ConvertOptions convert, OptionsOf(options));
    OpenOptions open = options.open;
    open.dequantized_dtype = convert.dtype;
    HAULWAY_ASSIGN(auto source, OpenModel(options, file, IoMode::kPread));
    HAULWAY_ASSIGN(const auto checkpoint,
                   // A cast looks for scales in every shard.
                   options.dtype.empty()
                       ? OpenChosen(std::move(source), open, options)
                       : OpenCheckpoint(std::move(source), open));
    HAULWAY_TRY(CompareSigned(SignatureScope::kAuto));
    // If it cannot be created, nothing is written.
    std::unique_ptr<ByteSink> proof;
    if (!options.proof.empty()) {
      HAULWAY_TRY(CheckNotRead(*checkpoint, file, options.proof));
      if (PlaceOf(options.proof) == PlaceOf(options.out)) {
        return Status(Code::kInvalidArgument,
                      "the proof would overwrite the new file")
            .Of(options.proof);
      }
      HAULWAY_ASSIGN(proof, OpenFileSink(options.proof));
      HAULWAY_TRY(proof->Begin(std::nullopt).status());
    }
    HAULWAY_ASSIGN(const ConvertReport report,
                   Convert(checkpoint, options.out, convert));
    if (proof != nullptr) HAULWAY_TRY(WriteProof(options, report, *proof));
    options.json ? PrintJson(options, report) : PrintText(options, report);
    return Status();
  };
  const Status status = run();
  return status.ok() ? kDone : Fail(options, status);
}

std::string CheckRenaming(const std::string& text) {
  std::string wrong = CheckPair(text);
  if (!wrong.empty()) return wrong;
  const auto [pattern, replacement] = SplitPair(text);
  return std::string(MakeRenaming(pattern, replacement).status().message());
}

Runner AddConvert(CLI::App& app) {
  const auto options = MakeOptions<ConvertVerbOptions>(app);
  AddBytes(app, *options);
  AddLenient(app, *options);
  AddNaming(app, *options);
  AddSignature(app);
  app.add_option_function<std::string>(
         "SRC",
         [options = options.get()](const std::string& file) {
           options->files = {file};
         },
         "A file, a model's folder, a URL, or - for standard input")
      ->required();
  AddRemote(app);
  app.add_option(
         "DST", options->out,
         "File to write, a folder (with --to), or - for standard output "
         "(with --to)")
      ->required();
  RefuseJsonBeside(app, *options, options->out);
  AddOverwrite(app);
  AddTo(app, &options->format, "Format; default: from the ending of DST");
  AddDType(app, &options->dtype);
  AddDequantize(app, *options);
  AddRaw(app, *options);
  AddFilters(app, *options);
  AddList(app, "--rename", options->rename,
          "REGEX=REPLACEMENT for names, \\1 for a group; repeatable")
      ->check(CheckRenaming);
  AddList(app, "--set", options->set,
          "KEY=VALUE: set a metadata entry of the new file; repeatable")
      ->check(CheckPair);
  AddFields(app, &options->convert);
  app.add_option("--proof", options->proof,
                 "Compare the SHA-256 of every tensor before and after, and "
                 "write the digests to this file")
      ->check(CheckFileToWrite);
  AddKey(app, *options);
  AddAllow(app, *options);
  AddProgress(app, *options);
  return {options, [options] { return ConvertFile(*options); }};
}

}  // namespace

extern const Verb kConvert = {
    "convert", "Write the tensors of a checkpoint in another format",
    "haulway convert model.pt model.safetensors\n"
    "haulway convert model.pt model.safetensors --dtype bf16 --shard 5GB\n"
    "haulway convert m.safetensors m.gguf --set general.architecture=llama\n"
    "haulway convert m.pt m.tensors --rename '^module\\.=' --proof "
    "sha256.json\n"
    "haulway convert model.safetensors step-0 --to torch-dcp\n"
    "haulway convert fp8-model/ bf16-model/ --to safetensors --dequantize\n"
    "haulway convert model/ merged/ --to safetensors --lora adapter:0.5\n"
    "haulway convert moe/ stacked/ --to safetensors --rules stack-experts",
    AddConvert,
    /*cancels=*/true};

}  // namespace haulway::cli
