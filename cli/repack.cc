#include <fmt/format.h>

#include <memory>

#include "command.h"
#include "haulway/convert.h"
#include "haulway/save.h"
#include "output.h"
#include "progress.h"

namespace haulway::cli {
namespace {

struct RepackVerbOptions : Options {
  std::string out;
  uint64_t alignment = 64;
  bool no_crc = false, compact = false, no_sync = false;
};

int RepackFile(const RepackVerbOptions& options) {
  const std::string& file = options.files.front();
  const auto run = [&]() -> Status {
    HAULWAY_TRY(CheckEnding(options.out, Format::kTorch));
    HAULWAY_ASSIGN(auto source, OpenInput(file));
    HAULWAY_ASSIGN(const auto checkpoint,
                   Checkpoint::Open(std::move(source), options.open));
    RepackOptions repack;
    HAULWAY_ASSIGN(repack.archive.archive_name, ArchiveNameOf(options.out));
    repack.archive.alignment = options.alignment;
    repack.archive.compute_crc32 = !options.no_crc;
    repack.archive.threads = options.threads;
    repack.compact = options.compact;
    HAULWAY_ASSIGN(const Repacked repacked, Repack(*checkpoint, repack));

    SinkOptions sink_options{.remote = Remote()};
    if (options.no_sync) sink_options.file.durability = Durability::kNone;
    HAULWAY_ASSIGN(const std::unique_ptr<ByteSink> sink,
                   OpenSink(options.out, sink_options));
    WriteOptions write;
    write.threads = options.threads;
    write.cancel = &interrupted;
    write.progress = Progress(options.out, options.no_progress);
    HAULWAY_ASSIGN(const WriteStats stats,
                   Write(*repacked.layout, *sink, write));
    if (options.out == "-") return Status();  // Where the bytes went.
    // The serialization id is a record too.
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

// Empty if it is a power of two that the zip container can keep.
std::string CheckAlignment(const std::string& text) {
  for (uint64_t power = 1; power <= 32768; power *= 2) {
    if (text == std::to_string(power)) return {};
  }
  return "expected a power of two up to 32768: " + text;
}

Runner Add(CLI::App& app) {
  const auto options = MakeOptions<RepackVerbOptions>(app);
  AddBytes(app, *options);
  AddFile(app, *options);
  AddOut(app, &options->out,
         "File to write; may be FILE, or - for standard output");
  app.add_option("--align", options->alignment,
                 "Alignment of tensors in the file: a power of two up to 32768")
      ->check(CheckAlignment);
  app.add_flag("--no-crc", options->no_crc, "Leave out checksums");
  app.add_flag("--compact", options->compact,
               "Leave out storages, and ends of storages, that no tensor uses");
  app.add_flag("--no-sync", options->no_sync,
               "Do not wait until the file is on the disk");
  AddAllow(app, *options);
  AddThreads(app, *options);
  AddProgress(app, *options);
  return {options, [options] { return RepackFile(*options); }};
}

}  // namespace

extern const Verb kRepack = {
    "repack", "Rewrite a PyTorch checkpoint in the layout of torch.save",
    "haulway repack old.pt new.pt --compact\n"
    "haulway repack model.pt model.pt --align 4096",
    Add,
    /*cancels=*/true};

}  // namespace haulway::cli
