#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "command.h"
#include "haulway/folder.h"
#include "haulway/open.h"
#include "haulway/signing.h"
#include "haulway/verify.h"
#include "output.h"
#include "signature.h"
#include "tell.h"

namespace haulway::cli {

int Fail(const Options& options, const Status& status) {
  // Output that cannot be written ends a callback, too; main() names it.
  if (std::ferror(stdout) != 0) return kFailed;
  Tell(fmt::format("haulway: {}\n", Escape(status.message())));
  if (options.json) {
    Json json;
    json.Begin('{').Key("error").Begin('{');
    json.Key("code").Text(CodeName(status.code()));
    json.Key("message").Text(status.message());
    json.Key("byte").Value(status.byte()).End('}').End('}').Print();
  }
  switch (status.code()) {
    case Code::kTruncated:
    case Code::kCorrupt:
    case Code::kMismatch:
    case Code::kUnsafe:
    case Code::kLimit:
    case Code::kAuth:
    case Code::kSignature:
      return kFound;
    case Code::kNotFound:  // A missing file, or a missing part of one.
      return status.os_error() != 0 ? kFailed : kNoMatch;
    case Code::kCancelled:
      return kInterrupted;
    case Code::kInvalidArgument:  // Options that contradict one another.
      return Sources().signature.wanted() ? kUsage : kFailed;
    default:
      return kFailed;
  }
}

NameOptions NamesOf(const Options& options) {
  NameOptions names = {.exclude = options.exclude, .prefix = options.prefix};
  if (!options.include.empty()) names.include = options.include;
  return names;
}

namespace {

SourceOptions Reaching(IoMode io) {
  SourceOptions options = Sources();
  options.io = io;
  options.remote = Remote();
  return options;
}

// Says on standard error if a checkpoint's object needs code.
void TellOfCode(const Checkpoint& checkpoint) {
  if (const auto note = NoteOfCode(checkpoint.index())) {
    Tell(fmt::format("haulway: {}; of {}\n", Escape(*note),
                     Escape(checkpoint.source().name())));
  }
}

}  // namespace

std::set<std::string>& OpenedNames() {
  static std::set<std::string> names;
  return names;
}

Result<std::shared_ptr<const ByteSource>> OpenInput(const std::string& path,
                                                    IoMode io) {
  OpenedNames().insert(path);
  return OpenSource(path, Reaching(io));
}

Result<std::shared_ptr<const ByteSource>> OpenFileInput(
    const std::string& path) {
  if (IsFolder(path)) {
    return Status(Code::kInvalidArgument, "it is a folder: expected a file")
        .Of(ShownName(path));
  }
  return OpenInput(path);
}

Result<std::shared_ptr<const ByteSource>> OpenModel(const Options& options,
                                                    const std::string& file,
                                                    IoMode io) {
  const bool is_named =
      std::ranges::find(options.files, file) != options.files.end();
  if (is_named && options.join.empty() && IsNamedAsShard(file)) {
    Tell(
        fmt::format("haulway: note: {} is one of several shards: name the "
                    "index or the folder to open the model\n",
                    Escape(ShownName(file))));
  }
  std::vector<std::string> names = {file};
  names.insert(names.end(), options.join.begin(), options.join.end());
  OpenedNames().insert(names.begin(), names.end());
  if (options.may_be_signed) TakeSignature();
  SourceOptions reached = Reaching(io);
  if (reached.signature.wanted()) {
    HAULWAY_ASSIGN(OpenedSigned(), OpenSignedModel(file, reached));
    reached.signed_model = OpenedSigned();
  }
  return OpenSources(names, reached);
}

Result<std::shared_ptr<const Checkpoint>> OpenChosen(
    std::shared_ptr<const ByteSource> source, const OpenOptions& open,
    const Options& options) {
  HAULWAY_ASSIGN(const NameFilter names, NameFilter::Make(NamesOf(options)));
  HAULWAY_ASSIGN(auto checkpoint,
                 Checkpoint::Open(std::move(source), open, kDefaultRetries,
                                  [&](std::string_view name) {
                                    return names.Mentions(name);
                                  }));
  TellOfCode(*checkpoint);
  return checkpoint;
}

Result<std::shared_ptr<const Checkpoint>> OpenCheckpoint(
    std::shared_ptr<const ByteSource> source, const OpenOptions& options) {
  HAULWAY_ASSIGN(auto checkpoint, Checkpoint::Open(std::move(source), options));
  TellOfCode(*checkpoint);
  return checkpoint;
}

Status WriteText(const std::string& out, std::string_view text) {
  HAULWAY_ASSIGN(auto sink, OpenSink(out, {.remote = Remote()}));
  HAULWAY_TRY(sink->Begin(text.size()).status());
  HAULWAY_TRY(sink->WriteAt(0, std::as_bytes(std::span(text))));
  return sink->Commit(text.size());
}

void Report(const std::string& out, std::string_view lines) {
  if (out == "-") {
    Tell(lines);
  } else {
    fmt::print("{}", lines);
  }
}

Result<std::vector<std::string>> ExpandInputs(
    const std::vector<std::string>& paths, FolderLister list) {
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    if (!IsFolder(path)) {
      out.push_back(path);
      continue;
    }
    HAULWAY_ASSIGN(const std::vector<std::string> found, list(path, Remote()));
    if (found.empty()) {
      return Status(Code::kNotFound,
                    fmt::format("nothing to look into in folder '{}'",
                                Escape(ShownName(path))));
    }
    out.insert(out.end(), found.begin(), found.end());
  }
  return out;
}

namespace {

// Leaves out the files that lie beside the directory of a checkpoint and have
// no layers to split, as the common.pt of Megatron.
void KeepLayered(const Options& options, std::vector<std::string>* files) {
  const auto is_beside = [&](const std::string& name) {
    return !name.ends_with("/.metadata") &&
           std::ranges::find(options.files, name) == options.files.end();
  };
  if (!std::ranges::all_of(*files, is_beside)) std::erase_if(*files, is_beside);
}

}  // namespace

int ForEachFile(const Options& options, const FileVerb& one,
                FolderLister list) {
  if (!options.join.empty() && options.files.size() != 1) {
    return Fail(options, Status(Code::kInvalidArgument,
                                "--join adds to one FILE: expected one"));
  }
  // These name one checkpoint, even in a folder.
  const bool is_one = !Sources().variant.empty() || !options.join.empty();
  auto files = Result<std::vector<std::string>>(options.files);
  if (!is_one) files = ExpandInputs(options.files, list);
  if (!files.ok()) return Fail(options, files.status());
  if (options.open.split_layers) KeepLayered(options, &*files);
  // From the best to the worst.
  constexpr int kOrder[] = {kNoMatch, kDone, kFound, kFailed, kInterrupted};
  const auto rank = [&](int exit) { return std::ranges::find(kOrder, exit); };
  int worst = kNoMatch;
  for (const std::string& file : files.value()) {
    if (interrupted) return kInterrupted;
    const int exit = one(file, files.value().size() > 1);
    if (rank(exit) > rank(worst)) worst = exit;
  }
  return worst;
}

}  // namespace haulway::cli
