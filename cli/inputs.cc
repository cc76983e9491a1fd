#include <fmt/format.h>

#include <algorithm>

#include "command.h"
#include "haulway/open.h"
#include "output.h"
#include "tell.h"

namespace haulway::cli {

int Fail(const Options& options, const Status& status) {
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
      return kFound;
    case Code::kNotFound:  // A missing file, or a missing part of one.
      return status.os_error() != 0 ? kFailed : kNoMatch;
    case Code::kCancelled:
      return kInterrupted;
    default:
      return kFailed;
  }
}

NameOptions NamesOf(const Options& options) {
  NameOptions names = {.exclude = options.exclude, .prefix = options.prefix};
  if (!options.include.empty()) names.include = options.include;
  return names;
}

Result<std::shared_ptr<const ByteSource>> OpenInput(const std::string& path,
                                                    IoMode io) {
  return OpenSource(path, {.io = io, .remote = Remote()});
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

int ForEachFile(const Options& options, const FileVerb& one,
                FolderLister list) {
  const auto files = ExpandInputs(options.files, list);
  if (!files.ok()) return Fail(options, files.status());
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
