// Design: each place is one function that returns credentials, returns none, or
// fails. A failure ends the search: an incomplete key is a mistake to report,
// not a reason to use another identity. Files are read once, when a client is
// made. Credentials from services are renewed ten minutes before they expire.
//
// Single sign-on and assumed roles are not supported: they need a browser or
// chains of requests. `credential_process` can run a program that supports
// them.

#include "s3/credentials.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <simdjson.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/posix.h"
#include "base/text.h"
#include "haulway/options.h"
#include "net/http_client.h"
#include "s3/sigv4.h"
#include "s3/xml.h"

namespace haulway::s3 {

namespace {

constexpr int64_t kRenewBefore = 600;  // Seconds.
constexpr size_t kMostOutput = size_t{1} << 20;
// How often a wait checks whether it is cancelled.
constexpr int kTickMs = 50;

// Returns the time of "2026-11-22T12:00:00Z", in seconds since 1970. The text
// may have a fraction of a second and an offset from UTC ("+02:00"). Returns
// nullopt for a text that does not begin with a time.
std::optional<int64_t> TimeOf(const std::string& text) {
  std::tm parts{};
  const char* rest = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts);
  if (rest == nullptr) return std::nullopt;
  const auto time = static_cast<int64_t>(::timegm(&parts));
  rest += std::strcspn(rest, "+-");
  std::tm zone{};
  const bool has_offset = ::strptime(rest, "%z", &zone) != nullptr;
  return has_offset ? time - zone.tm_gmtoff : time;
}

std::string ReadWord(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  while (!text.empty() && (text.back() == '\n' || text.back() == '\r')) {
    text.pop_back();
  }
  return text;
}

Status Lacks(std::string_view place, std::string_view name) {
  return Status(Code::kPermissionDenied,
                fmt::format("credentials of {} are not whole: {} is missing",
                            place, name));
}

// Returns the credentials if they have both keys, whose names in `place` are
// `id` and `secret`; otherwise an error.
Result<std::optional<Credentials>> IfWhole(Credentials found,
                                           std::string_view place,
                                           std::string_view id,
                                           std::string_view secret) {
  if (found.access_key.empty()) return Lacks(place, id);
  if (found.secret_key.empty()) return Lacks(place, secret);
  return std::optional(std::move(found));
}

// Makes a request to a service on this machine's network, without retries.
Result<net::HttpResponse> Ask(const std::string& method, const std::string& url,
                              std::vector<HttpHeader> headers,
                              std::chrono::milliseconds patience) {
  RemoteOptions remote;
  remote.connect_timeout = patience;
  remote.deadline = patience * 2;
  remote.retries = 0;
  HAULWAY_ASSIGN(const auto client, net::HttpClient::Make(remote));
  net::HttpRequest request;
  request.method = method;
  request.url = url;
  request.headers = std::move(headers);
  return client->Send(request);
}

// A running program, which is killed at the end of this object's lifetime.
class Program {
 public:
  explicit Program(pid_t process) : process_(process) {}
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;
  ~Program() {
    if (process_ < 0) return;
    ::kill(-process_, SIGKILL);  // Kills the shell and its children.
    int status = 0;
    while (::waitpid(process_, &status, 0) < 0 && errno == EINTR) continue;
  }

  // Returns the status of waitpid(2) if the program has ended. Does not wait.
  std::optional<int> Ended() {
    int status = 0;
    if (::waitpid(process_, &status, WNOHANG) != process_) return std::nullopt;
    process_ = -1;
    return status;
  }

 private:
  pid_t process_;
};

// Runs a shell command and returns its output. Kills the command if the call is
// cancelled, and if it prints more than credentials can be.
Result<std::string> OutputOf(const std::string& command) {
  const auto failed = [] {
    return Status(Code::kPermissionDenied, "the credential_process failed");
  };
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return failed();
  const UniqueFd out(ends[0]);
  UniqueFd in(ends[1]);
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_adddup2(&actions, in.get(), STDOUT_FILENO);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  std::array<std::string, 3> words{"sh", "-c", command};
  std::array<char*, 4> arguments{words[0].data(), words[1].data(),
                                 words[2].data(), nullptr};
  pid_t process = -1;
  const int error = ::posix_spawn(&process, "/bin/sh", &actions, &attributes,
                                  arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) return failed();
  in = UniqueFd();
  Program program(process);
  std::string text;
  std::array<char, 4096> piece{};
  bool is_open = true;
  while (true) {
    if (CancelScope::IsCancelled()) {
      return Status(Code::kCancelled,
                    "waiting for the credential_process was cancelled");
    }
    if (!is_open) {  // A program may close its output before it ends.
      if (const auto status = program.Ended()) {
        const bool worked = WIFEXITED(*status) && WEXITSTATUS(*status) == 0;
        if (!worked) return failed();
        return text;
      }
      ::poll(nullptr, 0, 1);
      continue;
    }
    pollfd one{out.get(), POLLIN, 0};
    if (::poll(&one, 1, kTickMs) <= 0) continue;
    const ssize_t got = ::read(out.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    is_open = got > 0;
    if (is_open) text.append(piece.data(), static_cast<size_t>(got));
    if (text.size() > kMostOutput) {
      return Status(Code::kPermissionDenied,
                    "the credential_process prints more than 1 MiB");
    }
  }
}

// Parses the JSON of containers, instances and processes, which differ only in
// the name of the token.
Result<std::optional<Credentials>> FromJson(const std::string& text,
                                            std::string_view token_name,
                                            std::string_view place) {
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (parser.parse(simdjson::padded_string(text)).get(root) !=
      simdjson::SUCCESS) {
    return Lacks(place, "a JSON object");
  }
  const auto value = [&](std::string_view key) {
    std::string_view found;
    if (root[key].get(found) != simdjson::SUCCESS) found = {};
    return std::string(found);
  };
  Credentials found{value("AccessKeyId"), value("SecretAccessKey"),
                    value(token_name), TimeOf(value("Expiration"))};
  return IfWhole(std::move(found), place, "AccessKeyId", "SecretAccessKey");
}

}  // namespace

Result<Credentials> CredentialChain::Get() {
  const auto searching = searching_.Lock();
  const std::optional<Credentials> known = Known();
  const bool is_fresh =
      known.has_value() && (!known->expires.has_value() ||
                            *known->expires - UnixTime() > kRenewBefore);
  if (is_fresh) return *known;
  auto found = Look();
  if (found.ok()) {
    SetKnown(*found);
    return found;
  }
  if (!known.has_value() || *known->expires <= UnixTime()) return found;
  return *known;
}

bool CredentialChain::Renew(const Credentials& refused) {
  const auto searching = searching_.Lock();
  if (!options_.access_key.empty()) return false;
  const auto is_refused = [&](const Credentials& found) {
    return found.access_key == refused.access_key &&
           found.session_token == refused.session_token;
  };
  const std::optional<Credentials> known = Known();
  if (!known.has_value() || !is_refused(*known)) return true;
  SetKnown(std::nullopt);
  auto found = Look();
  if (!found.ok()) return true;  // The next Get() reports the failure.
  if (is_refused(*found)) return false;
  SetKnown(*std::move(found));
  return true;
}

std::optional<Credentials> CredentialChain::Known() {
  const std::lock_guard lock(mutex_);
  return known_;
}

void CredentialChain::SetKnown(std::optional<Credentials> known) {
  const std::lock_guard lock(mutex_);
  known_ = std::move(known);
}

Result<Credentials> CredentialChain::Look() const {
  if (options_.anonymous) return Credentials();
  if (!options_.access_key.empty() || !options_.secret_key.empty()) {
    HAULWAY_ASSIGN(auto given,
                   IfWhole({options_.access_key, options_.secret_key,
                            options_.session_token},
                           "the options", "access_key", "secret_key"));
    return *std::move(given);
  }
  const auto keys_of = [&](const Section& section,
                           std::string_view place) -> Found {
    const auto value = [&](std::string_view key) {
      const auto found = section.find(key);
      return found == section.end() ? std::string() : found->second;
    };
    Credentials found{value("aws_access_key_id"),
                      value("aws_secret_access_key"),
                      value("aws_session_token")};
    if (found.access_key.empty() && found.secret_key.empty()) {
      return std::optional<Credentials>();
    }
    return IfWhole(std::move(found), place, "aws_access_key_id",
                   "aws_secret_access_key");
  };
  // A profile named in the options takes precedence over the environment.
  if (options_.profile.empty()) {
    HAULWAY_ASSIGN(auto found, FromEnvironment());
    if (found.has_value()) return *std::move(found);
  }
  HAULWAY_ASSIGN(auto found, FromWebIdentity());
  if (found.has_value()) return *std::move(found);
  HAULWAY_ASSIGN(found, keys_of(profile_.credentials, "the credentials file"));
  if (found.has_value()) return *std::move(found);
  HAULWAY_ASSIGN(found, FromProcess());
  if (found.has_value()) return *std::move(found);
  HAULWAY_ASSIGN(found, keys_of(profile_.config, "the configuration file"));
  if (found.has_value()) return *std::move(found);
  for (const std::string_view key :
       {"role_arn", "sso_session", "sso_start_url"}) {
    if (profile_.Value(key).empty()) continue;
    return Status(
        Code::kUnsupported,
        fmt::format("profile {} has {}: expected keys, or credential_process = "
                    "aws configure export-credentials --profile {}",
                    Quote(profile_.name), key, Escape(profile_.name)));
  }
  HAULWAY_ASSIGN(found, FromContainer());
  if (found.has_value()) return *std::move(found);
  HAULWAY_ASSIGN(found, FromInstance());
  if (found.has_value()) return *std::move(found);
  return Status(
      Code::kPermissionDenied,
      fmt::format("no credentials for S3 were found: tried the environment "
                  "(AWS_ACCESS_KEY_ID), web identity, profile {} in the AWS "
                  "files, the container's and the instance's services; for a "
                  "public bucket set AWS_NO_SIGN_REQUEST=yes",
                  Quote(profile_.name)));
}

CredentialChain::Found CredentialChain::FromEnvironment() const {
  Credentials found{environment_("AWS_ACCESS_KEY_ID"),
                    environment_("AWS_SECRET_ACCESS_KEY"),
                    environment_("AWS_SESSION_TOKEN")};
  if (found.session_token.empty()) {
    found.session_token = environment_("AWS_SECURITY_TOKEN");
  }
  if (found.access_key.empty()) return std::optional<Credentials>();
  return IfWhole(std::move(found), "the environment", "AWS_ACCESS_KEY_ID",
                 "AWS_SECRET_ACCESS_KEY");
}

CredentialChain::Found CredentialChain::FromWebIdentity() const {
  const bool is_named = !options_.profile.empty();
  const auto setting = [&](std::string_view variable, std::string_view key) {
    std::string value = is_named ? std::string() : environment_(variable);
    return value.empty() ? profile_.Value(key) : value;
  };
  const std::string file =
      setting("AWS_WEB_IDENTITY_TOKEN_FILE", "web_identity_token_file");
  const std::string role = setting("AWS_ROLE_ARN", "role_arn");
  if (file.empty()) return std::optional<Credentials>();
  if (role.empty()) return Lacks("web identity", "AWS_ROLE_ARN");
  // Read every time: the file is replaced from outside.
  const std::string token = ReadWord(file);
  if (token.empty()) {
    return Lacks("web identity", fmt::format("the token in {}", Quote(file)));
  }
  std::string session = setting("AWS_ROLE_SESSION_NAME", "role_session_name");
  if (session.empty()) session = fmt::format("haulway-{}", UnixTime());
  std::string endpoint = environment_("AWS_ENDPOINT_URL_STS");
  if (endpoint.empty()) endpoint = environment_("AWS_ENDPOINT_URL");
  if (endpoint.empty()) {
    std::string region = environment_("AWS_REGION");
    if (region.empty()) region = environment_("AWS_DEFAULT_REGION");
    endpoint = region.empty()
                   ? "https://sts.amazonaws.com"
                   : fmt::format("https://sts.{}.amazonaws.com", region);
  }
  const std::string body = CanonicalQuery({
      {"Action", "AssumeRoleWithWebIdentity"},
      {"Version", "2011-06-15"},
      {"RoleArn", role},
      {"RoleSessionName", session},
      {"WebIdentityToken", token},
  });
  HAULWAY_ASSIGN(const auto client, net::HttpClient::Make(remote_));
  net::HttpRequest request;
  request.method = "POST";
  request.url = endpoint + "/";
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded"}};
  request.body = {std::as_bytes(std::span(body))};
  request.judge = [](const net::HttpResponse& response) {
    return response.status == 400 ? net::Verdict::kDenied
                                  : net::Verdict::kUsual;
  };
  auto answer = client->Send(request);
  if (!answer.ok()) {
    return std::move(answer).status().In("web identity (STS)");
  }
  Credentials found{XmlText(answer->body, "AccessKeyId"),
                    XmlText(answer->body, "SecretAccessKey"),
                    XmlText(answer->body, "SessionToken"),
                    TimeOf(XmlText(answer->body, "Expiration"))};
  return IfWhole(std::move(found), "web identity", "AccessKeyId",
                 "SecretAccessKey");
}

CredentialChain::Found CredentialChain::FromProcess() const {
  const std::string command = profile_.Value("credential_process");
  if (command.empty()) return std::optional<Credentials>();
  HAULWAY_ASSIGN(const std::string text, OutputOf(command));
  return FromJson(text, "SessionToken", "credential_process");
}

CredentialChain::Found CredentialChain::FromContainer() const {
  std::string url = environment_("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  const std::string path =
      environment_("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  if (!path.empty()) url = "http://169.254.170.2" + path;
  if (url.empty()) return std::optional<Credentials>();
  std::string token = environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  const std::string file =
      environment_("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
  if (!file.empty()) token = ReadWord(file);
  std::vector<HttpHeader> headers;
  if (!token.empty()) headers.push_back({"Authorization", token});
  auto answer =
      Ask("GET", url, std::move(headers), std::chrono::milliseconds(2000));
  if (!answer.ok()) {
    return std::move(answer).status().In("the container's credentials");
  }
  return FromJson(answer->body, "Token", "the container's service");
}

CredentialChain::Found CredentialChain::FromInstance() const {
  if (environment_("AWS_EC2_METADATA_DISABLED") == "true") {
    return std::optional<Credentials>();
  }
  std::string base = environment_("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (base.empty()) base = "http://169.254.169.254";
  while (base.ends_with('/')) base.pop_back();
  const std::chrono::milliseconds patience(1000);
  const auto token =
      Ask("PUT", base + "/latest/api/token",
          {{"x-aws-ec2-metadata-token-ttl-seconds", "21600"}}, patience);
  if (token.status().code() == Code::kCancelled) return token.status();
  if (!token.ok()) return std::optional<Credentials>();  // Not an EC2 instance.
  const std::vector<HttpHeader> headers{
      {"x-aws-ec2-metadata-token", token->body}};
  const std::string roles =
      base + "/latest/meta-data/iam/security-credentials/";
  const auto role = Ask("GET", roles, headers, patience);
  if (role.status().code() == Code::kCancelled) return role.status();
  // The instance has no role.
  if (!role.ok()) return std::optional<Credentials>();
  const std::string name = role->body.substr(0, role->body.find('\n'));
  auto answer = Ask("GET", roles + name, headers, patience);
  if (!answer.ok()) {
    return std::move(answer).status().In("the instance's credentials");
  }
  return FromJson(answer->body, "Token", "the instance's service");
}

}  // namespace haulway::s3
