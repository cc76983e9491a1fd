#include <fmt/format.h>

#include <string>

#include "command.h"
#include "field_options.h"
#include "haulway/open.h"
#include "haulway/verify.h"
#include "output.h"
#include "progress.h"

namespace haulway::cli {
namespace {

struct GetVerbOptions : Options {
  std::string out;
  bool verify = false;
};

// Verifies a file. Returns the first finding as a failure.
Status CheckFile(const std::string& path, const GetVerbOptions& options) {
  HAULWAY_ASSIGN(auto source, OpenInput(path, IoMode::kPread));
  VerifyOptions verify;
  verify.open = options.open;
  verify.open.alone = true;  // A download is of one file.
  verify.threads = options.threads;
  verify.cancel = &interrupted;
  HAULWAY_ASSIGN(const VerifyReport report, Verify(std::move(source), verify));
  if (report.ok) return Status();
  if (report.findings.empty()) return Status(Code::kCorrupt, "not whole");
  return Status(report.findings.front().code, report.findings.front().message);
}

int Get(const GetVerbOptions& options) {
  const std::string& url = options.files.front();
  const auto run = [&]() -> Status {
    HAULWAY_ASSIGN(const auto source, OpenFileInput(url));
    DownloadOptions download;
    download.threads = options.threads;
    download.cancel = &interrupted;
    download.progress = Progress(options.out, options.no_progress);
    if (options.verify) {
      download.check = [&](const std::string& path) {
        return CheckFile(path, options);
      };
    }
    auto stats = Download(*source, options.out, download);
    if (!stats.ok()) return std::move(stats).status();
    if (options.json) {
      Json json;
      json.Begin('{').Key("file").Text(ShownName(options.out));
      json.Fields(*stats).End('}').Print();
      return Status();
    }
    fmt::print("{} in {:.3f} s, {}{}\n", Size(stats->bytes, options.bytes),
               stats->seconds, Counted(stats->requests, "request"),
               stats->resumed_bytes == 0
                   ? ""
                   : fmt::format("; {} were there already",
                                 Size(stats->resumed_bytes, options.bytes)));
    return Status();
  };
  const Status status = run();
  return status.ok() ? kDone : Fail(options, status);
}

Runner AddGet(CLI::App& app) {
  const auto options = MakeOptions<GetVerbOptions>(app);
  AddBytes(app, *options);
  AddFields(app, &options->open,
            {"part", "weights", "replicas", "split_layers"});
  app.add_option_function<std::string>(
         "URL",
         [files = &options->files](const std::string& url) { *files = {url}; },
         "What to download: a URL, or a file")
      ->required();
  AddRemote(app);
  app.add_option("FILE", options->out, "File to write")
      ->required()
      ->check(CheckFileToWrite);
  app.add_flag("--verify", options->verify,
               "Verify the whole file before it takes its name");
  AddAllow(app, *options);
  AddKey(app, *options);
  AddThreads(app, *options);
  AddProgress(app, *options);
  return {options, [options] { return Get(*options); }};
}

}  // namespace

extern const Verb kGet = {
    "get", "Download a file from a URL, resuming an interrupted download",
    "haulway get https://example.com/model.safetensors model.safetensors\n"
    "haulway get https://example.com/model.pt model.pt --verify\n"
    "haulway get s3://models/m.tensors m.tensors --verify --keyfile m.key",
    AddGet,
    /*cancels=*/true};

}  // namespace haulway::cli
