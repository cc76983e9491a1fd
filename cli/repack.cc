#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "field_options.h"
#include "haulway/convert.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "open_output.h"
#include "output.h"
#include "progress.h"

namespace haulway::cli {
namespace {

struct RepackVerbOptions : Options {
  std::string out;
  RepackOptions repack;
  FileSinkOptions file;
  WriteOptions write;
};

int RepackFile(const RepackVerbOptions& options) {
  const std::string& file = options.files.front();
  const auto run = [&]() -> Status {
    HAULWAY_TRY(CheckEnding(options.out, Format::kTorch));
    HAULWAY_TRY(CheckOutput(options.out));
    HAULWAY_ASSIGN(auto source, OpenInput(file));
    HAULWAY_ASSIGN(const auto checkpoint,
                   OpenCheckpoint(std::move(source), options.open));
    RepackOptions repack = options.repack;
    HAULWAY_ASSIGN(repack.archive.archive_name, ArchiveNameOf(options.out));
    repack.archive.threads = options.write.threads;
    HAULWAY_ASSIGN(const Repacked repacked, Repack(*checkpoint, repack));

    HAULWAY_ASSIGN(
        const std::unique_ptr<ByteSink> sink,
        OpenSink(options.out, {.file = options.file, .remote = Remote()}));
    WriteOptions write = options.write;
    write.cancel = &interrupted;
    write.progress = Progress(options.out, options.no_progress);
    HAULWAY_ASSIGN(const WriteStats stats,
                   Write(*repacked.layout, *sink, write));
    // Standard output has the file's bytes.
    if (options.out == "-") return Status();
    // Add one for the serialization id, which is a record too.
    const uint64_t records = repacked.layout->payloads().size() + 1;
    if (options.json) {
      Json json;
      json.Begin('{')
          .Key("file")
          .Text(ShownName(file))
          .Key("out")
          .Text(ShownName(options.out));
      json.Key("records").Number(records);
      json.Key("dropped_bytes").Number(repacked.dropped_bytes);
      json.Fields(stats);
      json.End('}').Print();
    } else {
      fmt::print("{}, {} in {:.3f} s{}\n", Counted(records, "record"),
                 Size(stats.bytes, options.bytes), stats.seconds,
                 repacked.dropped_bytes == 0
                     ? ""
                     : fmt::format("; {} dropped", Size(repacked.dropped_bytes,
                                                        options.bytes)));
    }
    return Status();
  };
  const Status status = run();
  return status.ok() ? kDone : Fail(options, status);
}

Runner AddRepack(CLI::App& app) {
  const auto options = MakeOptions<RepackVerbOptions>(app);
  AddBytes(app, *options);
  AddFile(app, *options);
  AddOut(app, &options->out,
         "File to write; may be FILE, or - for standard output");
  RefuseJsonBeside(app, *options, options->out);
  AddFields(app, &options->repack);
  AddFields(app, &options->file);
  AddFields(app, &options->write);
  AddAllow(app, *options);
  AddProgress(app, *options);
  return {options, [options] { return RepackFile(*options); }};
}

}  // namespace

extern const Verb kRepack = {
    "repack", "Rewrite a PyTorch checkpoint in the layout of torch.save",
    "haulway repack old.pt new.pt --compact\n"
    "haulway repack model.pt model.pt --align 4096",
    AddRepack,
    /*cancels=*/true};

}  // namespace haulway::cli
