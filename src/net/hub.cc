#include "net/hub.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <mutex>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"
#include "io/model_names.h"
#include "net/fork_mutex.h"
#include "net/http_source.h"

namespace haulway::net {

namespace {

constexpr size_t kCommitDigits = 40;

bool IsYes(std::string_view text) {
  const std::string value = LowerCase(text);
  return value == "1" || value == "true" || value == "yes" || value == "on";
}

// Returns whether `path` is a relative path downwards.
bool LeadsDown(std::string_view path) {
  while (true) {
    const size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == path.npos) return path.find('\0') == path.npos;
    path.remove_prefix(slash + 1);
  }
}

// Returns the first line of a small file, or an empty string.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  const size_t end = line.find_last_not_of(" \t\r\n");
  return end == line.npos ? "" : line.substr(0, end + 1);
}

// Returns the folder of the hub's library.
std::string Home(const Environment& environment) {
  if (std::string home = environment("HF_HOME"); !home.empty()) return home;
  std::string cache = environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = environment("HOME") + "/.cache";
  return cache + "/huggingface";
}

std::string TokenOf(const Environment& environment) {
  for (const auto name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string token = environment(name); !token.empty()) return token;
  }
  std::string path = environment("HF_TOKEN_PATH");
  if (path.empty()) path = Home(environment) + "/token";
  return FirstLine(path);
}

bool IsCommit(std::string_view revision) {
  return revision.size() == kCommitDigits &&
         std::ranges::all_of(revision, [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// The commit of a revision, as reported by the hub.
class Commit {
 public:
  void Note(std::string_view commit) {
    const std::lock_guard lock(mutex_);
    if (IsCommit(commit)) commit_ = commit;
  }
  std::string Or(const std::string& revision) const {
    const std::lock_guard lock(mutex_);
    return commit_.empty() ? revision : commit_;
  }

 private:
  mutable ForkMutex mutex_;
  std::string commit_ HAULWAY_GUARDED_BY(mutex_);
};

HttpTarget TargetOf(const HubName& name, const std::string& endpoint) {
  const std::string kind = name.kind == "models" ? "" : name.kind + "/";
  const auto commit = std::make_shared<Commit>();
  HttpTarget target;
  target.url = fmt::format("{}/{}{}/resolve/{}/{}", endpoint, kind,
                           UriEncode(name.repository, /*keep_slashes=*/true),
                           UriEncode(name.revision, /*keep_slashes=*/false),
                           UriEncode(name.path, /*keep_slashes=*/true));
  target.judge = [commit](const HttpResponse& response) {
    commit->Note(response.Header("x-repo-commit"));
    return Verdict::kUsual;
  };
  target.neighbour = [commit, name,
                      endpoint](std::string_view path) -> Result<HttpTarget> {
    HubName beside = name;
    beside.revision = commit->Or(name.revision);
    const size_t slash = name.path.rfind('/');
    beside.path = slash == name.path.npos ? "" : name.path.substr(0, slash + 1);
    beside.path += path;
    return TargetOf(beside, endpoint);
  };
  return target;
}

}  // namespace

Result<HubName> ParseHubName(std::string_view uri) {
  const auto wrong = [&](std::string_view why) {
    return Status(Code::kInvalidArgument,
                  fmt::format("{} {}: expected hf://ORG/NAME[@REVISION][/PATH]",
                              Quote(uri), why));
  };
  std::string_view rest = uri.substr(std::min(uri.find("://"), uri.size()));
  rest.remove_prefix(std::min<size_t>(rest.size(), 3));
  HubName name;
  name.kind = "models";
  for (const std::string_view kind : {"models", "datasets", "spaces"}) {
    if (rest.starts_with(kind) && rest.substr(kind.size()).starts_with('/')) {
      name.kind = kind;
      rest.remove_prefix(kind.size() + 1);
      break;
    }
  }
  const size_t first = rest.find('/');
  if (first == rest.npos) return wrong("has no name behind the organisation");
  const size_t second = std::min(rest.find('/', first + 1), rest.size());
  std::string_view repository = rest.substr(0, second);
  rest.remove_prefix(std::min(second + 1, rest.size()));
  const size_t at = repository.find('@');
  if (at != repository.npos) {
    name.revision = PercentDecode(repository.substr(at + 1));
    repository = repository.substr(0, at);
    if (!LeadsDown(name.revision)) return wrong("has no revision behind @");
    if (repository.find('/') == repository.npos) {
      return wrong("has no name behind the organisation");
    }
  }
  if (!LeadsDown(repository)) return wrong("has an empty part");
  while (rest.ends_with('/')) rest.remove_suffix(1);
  if (!rest.empty() && !LeadsDown(rest)) return wrong("does not lead down");
  name.repository = repository;
  name.path = rest;
  return name;
}

std::optional<std::string> FindInHubCache(const HubName& name,
                                          const Environment& environment,
                                          std::string_view variant) {
  std::string folder = environment("HF_HUB_CACHE");
  if (folder.empty()) folder = environment("HUGGINGFACE_HUB_CACHE");
  if (folder.empty()) folder = Home(environment) + "/hub";
  std::string repository = name.repository;
  repository.replace(repository.find('/'), 1, "--");
  folder += fmt::format("/{}--{}", name.kind, repository);
  std::string commit = name.revision;
  if (!IsCommit(commit)) {
    commit = FirstLine(fmt::format("{}/refs/{}", folder, commit));
    if (!IsCommit(commit)) return std::nullopt;
  }
  std::string path = fmt::format("{}/snapshots/{}", folder, commit);
  struct stat facts;
  if (!name.path.empty()) {
    path += "/" + name.path;
    if (::stat(path.c_str(), &facts) != 0) return std::nullopt;
    return path;
  }
  for (const std::string& file : AllUsualNames(variant)) {
    if (::stat(fmt::format("{}/{}", path, file).c_str(), &facts) == 0) {
      return path;
    }
  }
  return std::nullopt;
}

bool IsHubOffline(const Environment& environment) {
  return IsYes(environment("HF_HUB_OFFLINE"));
}

Result<std::shared_ptr<const ByteSource>> OpenHubFile(
    const HubName& name, const Environment& environment,
    const RemoteOptions& options, std::string_view variant) {
  if (IsHubOffline(environment)) {
    return Status::FromErrno(
        ENOENT,
        fmt::format("{} is not in the hub's cache, and "
                    "HF_HUB_OFFLINE forbids to ask for it",
                    Quote(fmt::format("{}/{}", name.repository, name.path))));
  }
  std::string endpoint = environment("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  while (endpoint.ends_with('/')) endpoint.pop_back();
  RemoteOptions remote = options;
  if (remote.bearer_token.empty()) remote.bearer_token = TokenOf(environment);
  HAULWAY_ASSIGN(const auto client, HttpClient::Make(std::move(remote)));
  if (!name.path.empty()) {
    return OpenHttpSource(client, TargetOf(name, endpoint));
  }
  HubName file = name;
  for (const std::string& path : AllUsualNames(variant)) {
    file.path = path;
    auto source = OpenHttpSource(client, TargetOf(file, endpoint));
    if (source.ok() || source.status().code() != Code::kNotFound) return source;
  }
  return Status(Code::kNotFound,
                fmt::format("{} has no checkpoint of a usual name: expected "
                            "hf://{}/PATH",
                            Quote(name.repository), Escape(name.repository)));
}

}  // namespace haulway::net
