#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <sstream>

#include "command.h"
#include "haulway/format.h"
#include "output.h"

namespace haulway::cli {

int Fail(const Options& options, const Status& status) {
  fmt::print(stderr, "haulway: {}\n", Escape(status.message()));
  if (options.json) {
    Json json;
    json.Begin('{').Key("error").Begin('{');
    json.Key("code").Text(CodeName(status.code()));
    json.Key("message").Text(status.message());
    json.Key("byte").Byte(status.byte()).End('}').End('}').Print();
  }
  switch (status.code()) {
    case Code::kTruncated:
    case Code::kCorrupt:
    case Code::kMismatch:
    case Code::kUnsafe:
    case Code::kLimit:
    case Code::kAuth:
      return kFound;
    case Code::kNotFound:  // A file, or what was asked of one.
      return status.os_error() != 0 ? kFailed : kNoMatch;
    case Code::kCancelled:
      return kInterrupted;
    default:
      return kFailed;
  }
}

Result<std::shared_ptr<const ByteSource>> OpenInput(const std::string& path) {
  if (path != "-") return OpenMmapSource(path);
  auto stream = std::make_shared<std::stringstream>();
  *stream << std::cin.rdbuf();
  stream->clear();
  return MakeIstreamSource(std::move(stream), "standard input");
}

Result<std::vector<std::string>> ExpandInputs(
    const std::vector<std::string>& paths) {
  namespace fs = std::filesystem;
  std::vector<std::string> out;
  for (const std::string& path : paths) {
    std::error_code error;
    if (path == "-" || !fs::is_directory(path, error)) {
      out.push_back(path);
      continue;
    }
    const size_t first = out.size();
    for (fs::recursive_directory_iterator it(path, error), end;
         !error && it != end; it.increment(error)) {
      std::error_code ignored;
      if (FormatBySuffix(it->path().native()) != nullptr &&
          it->is_regular_file(ignored)) {
        out.push_back(it->path().string());
      }
    }
    if (error) {
      return Status::FromErrno(error.value(), "cannot walk directory").Of(path);
    }
    std::sort(out.begin() + static_cast<std::ptrdiff_t>(first), out.end());
  }
  return out;
}

int ForEachFile(const Options& options, FileVerb one) {
  const auto files = ExpandInputs(options.files);
  if (!files.ok()) return Fail(options, files.status());
  const auto rank = [](int exit) {
    return exit == kFailed ? 3 : exit == kFound ? 2 : exit == kDone ? 1 : 0;
  };
  int worst = kNoMatch;
  for (const std::string& file : files.value()) {
    const int exit = one(options, file, files.value().size() > 1);
    if (rank(exit) > rank(worst)) worst = exit;
  }
  return worst;
}

}  // namespace haulway::cli
