#include <fmt/format.h>

#include <string>

#include "command.h"
#include "field_options.h"
#include "haulway/layout.h"
#include "haulway/open.h"
#include "open_output.h"
#include "output.h"
#include "progress.h"

namespace haulway::cli {
namespace {

struct PutVerbOptions : Options {
  std::string out;
  bool no_clobber = false;
  std::string abort;
  WriteOptions write;
};

int AbortUploads(const PutVerbOptions& options) {
  const auto ended = AbortS3Uploads(options.abort, {}, Remote());
  if (!ended.ok()) return Fail(options, ended.status());
  if (options.json) {
    Json json;
    json.Begin('{').Key("url").Text(ShownName(options.abort));
    json.Key("ended").Number(*ended).End('}').Print();
  } else {
    fmt::print("{} upload{} ended\n", *ended, *ended == 1 ? "" : "s");
  }
  return kDone;
}

int Put(const PutVerbOptions& options) {
  if (!options.abort.empty()) return AbortUploads(options);
  const auto run = [&]() -> Status {
    const std::string& file = options.files.front();
    HAULWAY_ASSIGN(const auto source, OpenFileInput(file));
    FileSinkOptions target;
    if (options.no_clobber) target.existing = Existing::kRefuse;
    HAULWAY_ASSIGN(const auto sink, OpenOutput(options.out, target));
    WriteOptions write = options.write;
    write.cancel = &interrupted;
    write.progress = Progress(options.out, options.no_progress);
    HAULWAY_ASSIGN(const WriteStats stats, Upload(*source, *sink, write));
    if (options.out == "-") return Status();
    if (options.json) {
      Json json;
      json.Begin('{')
          .Key("file")
          .Text(ShownName(file))
          .Key("out")
          .Text(sink->name());
      json.Fields(stats);
      json.End('}').Print();
    } else {
      fmt::print("{} in {:.3f} s\n", Size(stats.bytes, options.bytes),
                 stats.seconds);
    }
    return Status();
  };
  const Status status = run();
  return status.ok() ? kDone : Fail(options, status);
}

Runner AddPut(CLI::App& app) {
  const auto options = MakeOptions<PutVerbOptions>(app);
  AddBytes(app, *options);
  app.add_option_function<std::string>(
      "FILE",
      [files = &options->files](const std::string& file) { *files = {file}; },
      "File to upload, or - for standard input");
  app.add_option("URL", options->out,
                 "Where to write it: s3://, redis://, a path, or - for "
                 "standard output");
  RefuseJsonBeside(app, *options, options->out);
  auto* const overwrite = AddOverwrite(app);
  app.add_flag("--no-clobber", options->no_clobber,
               "Fail instead of replacing anything")
      ->excludes(overwrite);
  app.add_option("--abort", options->abort,
                 "Abort incomplete uploads to s3://BUCKET/KEY, or to every key "
                 "below a name that ends in /")
      ->type_name("URL");
  AddRemote(app);
  AddFields(app, &options->write);
  AddProgress(app, *options);
  app.final_callback([options] {
    if (!options->abort.empty()) return;
    if (options->files.empty() || options->out.empty()) {
      throw CLI::ValidationError("put",
                                 "expected FILE and URL, or --abort URL");
    }
  });
  return {options, [options] { return Put(*options); }};
}

}  // namespace

extern const Verb kPut = {
    "put",
    "Upload a file to an object store or to Redis; it appears complete or not "
    "at all",
    "haulway put model.safetensors s3://bucket/models/model.safetensors\n"
    "haulway put model.tensors redis://localhost/model --overwrite\n"
    "haulway put --abort s3://bucket/models/",
    AddPut,
    /*cancels=*/true};

}  // namespace haulway::cli
