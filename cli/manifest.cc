#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>

#include "command.h"
#include "field_options.h"
#include "haulway/compare.h"
#include "haulway/open.h"
#include "haulway/select.h"
#include "is_read.h"
#include "no_match.h"
#include "output.h"
#include "progress.h"
#include "signature.h"

namespace haulway::cli {
namespace {

struct ManifestVerbOptions : Options {
  std::string out;
  ManifestOptions made;
};

void PrintText(const Manifest& manifest) {
  for (const ManifestTensor& tensor : manifest) {
    fmt::print("{:64}  {:5} {}  {}\n",
               tensor.sha256.has_value() ? Hex(*tensor.sha256) : "-",
               Name(tensor.dtype), Shape(tensor.shape), Escape(tensor.name));
  }
}

int ManifestFile(const ManifestVerbOptions& options) {
  const std::string& file = options.files.front();
  bool is_empty = false;
  const auto run = [&]() -> Status {
    HAULWAY_ASSIGN(auto source, OpenModel(options, file, IoMode::kPread));
    HAULWAY_ASSIGN(const auto checkpoint,
                   OpenChosen(std::move(source), options.open, options));
    HAULWAY_TRY(CompareSigned(SignatureScope::kAuto));
    HAULWAY_TRY(CheckNotRead(*checkpoint, file, options.out));
    HAULWAY_ASSIGN(const NameFilter names, NameFilter::Make(NamesOf(options)));
    HAULWAY_TRY(names.CheckUsed({checkpoint.get()}));
    ManifestOptions made = options.made;
    if (!names.all()) {
      made.select = [&](std::string_view name) { return names.Matches(name); };
    }
    made.cancel = &interrupted;
    made.progress = Progress(file, options.no_progress);
    HAULWAY_ASSIGN(const Manifest manifest, MakeManifest(*checkpoint, made));
    is_empty = !names.all() && manifest.empty();
    if (!options.out.empty() && !is_empty) {
      HAULWAY_TRY(WriteText(options.out, ManifestToJson(manifest) + "\n"));
    }
    if (options.json) {
      // The manifest's fields follow the file's name.
      fmt::print("{{\"file\":{},{}\n", JsonText(ShownName(file)),
                 ManifestToJson(manifest).substr(1));
    } else if (options.out.empty()) {
      PrintText(manifest);
    }
    return Status();
  };
  const Status status = run();
  if (!status.ok()) return Fail(options, status);
  return is_empty ? NoMatch(file) : kDone;
}

Runner AddManifest(CLI::App& app) {
  const auto options = MakeOptions<ManifestVerbOptions>(app);
  AddModel(app, *options);
  AddDequantize(app, *options);
  app.add_option("-o,--out", options->out,
                 "Write JSON to this file, for `haulway verify --manifest`");
  RefuseJsonBeside(app, *options, options->out);
  AddFilters(app, *options);
  AddKey(app, *options);
  AddAllow(app, *options);
  AddFields(app, &options->made);
  AddProgress(app, *options);
  return {options, [options] { return ManifestFile(*options); }};
}

}  // namespace

extern const Verb kManifest = {
    "manifest",
    "Print a SHA-256 of each tensor; equal tensors have equal digests in every "
    "format",
    "haulway manifest model.pt\n"
    "haulway manifest model.safetensors --out model.sha256.json\n"
    "haulway verify model.gguf --manifest model.sha256.json",
    AddManifest,
    /*cancels=*/true};

}  // namespace haulway::cli
