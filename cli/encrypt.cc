#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "command.h"
#include "field_options.h"
#include "haulway/convert.h"
#include "haulway/layout.h"
#include "haulway/save.h"
#include "haulway/sink.h"
#include "open_output.h"
#include "output.h"
#include "progress.h"

namespace haulway::cli {
namespace {

struct CipherOptions : Options {
  std::string out;
  bool authenticate = false, no_authenticate = false;
  WriteOptions write;
};

bool InSegments(const Checkpoint& checkpoint) {
  return std::ranges::any_of(checkpoint.index().facts, [](const Fact& fact) {
    return fact.name == "layout" &&
           fact.value == FactValue(std::string("segments"));
  });
}

// Writes the tensors of FILE to OUT, encrypted with `key` unless that is empty.
int Rewrite(const CipherOptions& options, const OpenOptions& open,
            const EncryptionKey& key) {
  const std::string& file = options.files.front();
  const Status named = CheckEnding(options.out, Format::kTensorizer);
  if (!named.ok()) return Fail(options, named);
  Result<std::shared_ptr<const ByteSource>> source = OpenInput(file);
  if (!source.ok()) return Fail(options, source.status());
  const auto checkpoint = OpenCheckpoint(*source, open);
  if (!checkpoint.ok()) return Fail(options, checkpoint.status());
  if (options.authenticate && InSegments(**checkpoint)) {
    return Fail(options, Status(Code::kUnsupported,
                                "metadata in segments is not authenticated")
                             .Of(ShownName(file)));
  }
  auto sink = OpenOutput(options.out);
  if (!sink.ok()) return Fail(options, sink.status());
  EncryptOptions write = {.write = options.write};
  write.write.cancel = &interrupted;
  write.write.progress = Progress(options.out, options.no_progress);
  write.authenticate_metadata = !options.no_authenticate;
  const auto stats = EncryptCheckpoint(*checkpoint.value(), key, **sink, write);
  if (!stats.ok()) return Fail(options, stats.status());
  // Standard output has the file's bytes.
  if (options.out == "-") return kDone;
  if (options.json) {
    Json json;
    json.Begin('{')
        .Key("file")
        .Text(ShownName(file))
        .Key("out")
        .Text(ShownName(options.out));
    json.Key("tensors").Number(stats->tensors);
    json.Fields(stats->write);
    json.End('}').Print();
  } else {
    fmt::print("{}: {}, {}\n", Escape(ShownName(options.out)),
               Counted(stats->tensors, "tensor"),
               Size(stats->write.bytes, options.bytes));
  }
  return kDone;
}

int Encrypt(const CipherOptions& options) {
  // The key is for the new file. The old one must not need a key.
  OpenOptions open = options.open;
  open.key = {};
  return Rewrite(options, open, options.open.key);
}

int Decrypt(const CipherOptions& options) {
  return Rewrite(options, options.open, {});
}

std::shared_ptr<CipherOptions> AddBoth(CLI::App& app) {
  auto options = MakeOptions<CipherOptions>(app);
  AddBytes(app, *options);
  AddFile(app, *options);
  AddOut(app, &options->out, "File to write, or - for standard output");
  RefuseJsonBeside(app, *options, options->out);
  AddOverwrite(app);
  AddKey(app, *options, /*required=*/true);
  AddFields(app, &options->write);
  AddProgress(app, *options);
  return options;
}

Runner AddEncrypt(CLI::App& app) {
  const auto options = AddBoth(app);
  auto* authenticate = app.add_flag(
      "--authenticate", options->authenticate,
      "Protect names, types, shapes and order against changes: the default, "
      "except for files in segments, which do not support it");
  app.add_flag("--no-authenticate", options->no_authenticate,
               "Do not protect names, types, shapes and order")
      ->excludes(authenticate);
  return {options, [options] { return Encrypt(*options); }};
}

Runner AddDecrypt(CLI::App& app) {
  const auto options = AddBoth(app);
  return {options, [options] { return Decrypt(*options); }};
}

}  // namespace

extern const Verb kEncrypt = {
    "encrypt", "Encrypt a tensorizer file",
    "haulway encrypt model.tensors secret.tensors --keyfile key", AddEncrypt,
    /*cancels=*/true};
extern const Verb kDecrypt = {
    "decrypt", "Decrypt a tensorizer file",
    "haulway decrypt secret.tensors model.tensors --keyfile key", AddDecrypt,
    /*cancels=*/true};

}  // namespace haulway::cli
