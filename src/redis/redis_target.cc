#include "redis/redis_target.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "base/ascii.h"
#include "base/text.h"

namespace haulway::redis {

namespace {

Status Wrong(std::string_view why) {
  return Status(
      Code::kInvalidArgument,
      fmt::format("a redis name {}: expected "
                  "redis[s]://[USER:PASSWORD@]HOST[:PORT]/[DB/]PREFIX, "
                  "redis+unix:///SOCKET?prefix=PREFIX, or ?key=NAME for a "
                  "plain value",
                  why));
}

std::optional<uint32_t> Number(std::string_view text, uint32_t most) {
  const auto value = ParseNumber<uint32_t>(text);
  return value.has_value() && *value <= most ? value : std::nullopt;
}

constexpr uint32_t kMostDatabases = std::numeric_limits<int32_t>::max();

// Parses [USER:PASSWORD@]HOST[:PORT].
Status ParseServer(std::string_view text, Target* target) {
  const size_t at = text.rfind('@');
  if (at != text.npos) {
    const std::string_view login = text.substr(0, at);
    const size_t colon = login.find(':');
    if (colon == login.npos) return Wrong("has a user without a password");
    target->user = PercentDecode(login.substr(0, colon));
    target->password = PercentDecode(login.substr(colon + 1));
    text = text.substr(at + 1);
  }
  std::string_view port;
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == text.npos) return Wrong("has a [ without its ]");
    target->host = text.substr(1, end - 1);
    text = text.substr(end + 1);
    if (!text.empty() && text.front() != ':') return Wrong("has no host");
    if (!text.empty()) port = text.substr(1);
  } else {
    const size_t colon = text.find(':');
    target->host = text.substr(0, colon);
    if (colon != text.npos) port = text.substr(colon + 1);
  }
  if (port.empty()) return Status();
  const auto number = Number(port, 65535);
  if (!number.has_value() || *number == 0) return Wrong("has a wrong port");
  target->port = static_cast<uint16_t>(*number);
  return Status();
}

// Parses the part after the question mark.
Status ParseOptions(std::string_view query, Target* target) {
  while (!query.empty()) {
    const std::string_view item = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), item.size() + 1));
    const size_t equals = item.find('=');
    const std::string_view name = item.substr(0, equals);
    const std::string value =
        equals == item.npos ? "" : PercentDecode(item.substr(equals + 1));
    if (name == "key") {
      target->key = value;
    } else if (name == "prefix") {
      target->prefix = value;
    } else if (name == "db") {
      const auto number = Number(value, kMostDatabases);
      if (!number.has_value()) return Wrong("has a wrong database");
      target->database = *number;
    } else if (!name.empty()) {
      return Wrong(fmt::format("has the unknown option {}", Quote(name)));
    }
  }
  return Status();
}

Status ParseParts(std::string_view uri, Target* target) {
  const size_t colon = uri.find("://");
  if (colon == uri.npos) return Wrong("has no ://");
  const std::string scheme = LowerCase(uri.substr(0, colon));
  std::string_view rest = uri.substr(colon + 3);
  const size_t question = rest.find('?');
  const std::string_view query =
      question == rest.npos ? "" : rest.substr(question + 1);
  rest = rest.substr(0, question);
  if (scheme == "redis+unix" || scheme == "unix") {
    const size_t slash = rest.find('/');
    if (slash == rest.npos) return Wrong("has no socket");
    if (slash > 0) HAULWAY_TRY(ParseServer(rest.substr(0, slash), target));
    if (!target->host.empty()) return Wrong("has a host beside its socket");
    target->socket_path = PercentDecode(rest.substr(slash));
    return ParseOptions(query, target);
  }
  target->is_tls = scheme == "rediss";
  const size_t slash = rest.find('/');
  HAULWAY_TRY(ParseServer(rest.substr(0, slash), target));
  std::string_view path = slash == rest.npos ? "" : rest.substr(slash + 1);
  const std::string_view first = path.substr(0, path.find('/'));
  const auto database = Number(first, kMostDatabases);
  // A number alone is a prefix; a number is a database only if a prefix or
  // options follow.
  if (database.has_value() && (first.size() < path.size() || !query.empty())) {
    target->database = *database;
    path.remove_prefix(std::min(path.size(), first.size() + 1));
  }
  target->prefix = path;
  return ParseOptions(query, target);
}

}  // namespace

Result<Target> ParseTarget(std::string_view uri, std::string_view environment) {
  Target target;
  HAULWAY_TRY(ParseParts(uri, &target));
  if (target.host.empty() && target.socket_path.empty()) {
    if (environment.empty()) return Wrong("has no host, nor has REDIS_URL one");
    Target server;
    // REDIS_URL may name a server alone, "redis://h:1/0", which ends in its
    // database.
    std::string full(environment);
    if (full.find('?') == full.npos) full += "?key=";
    HAULWAY_TRY(ParseParts(full, &server));
    if (server.host.empty() && server.socket_path.empty()) {
      return Wrong("has no host, nor has REDIS_URL one");
    }
    server.prefix = std::move(target.prefix);
    server.key = std::move(target.key);
    if (target.database != 0) server.database = target.database;
    target = std::move(server);
  }
  if (target.prefix.empty() == target.key.empty()) {
    return Wrong(target.key.empty() ? "has neither prefix nor key"
                                    : "has both a prefix and a key");
  }
  const std::string_view what = target.key.empty() ? "prefix" : "key";
  const std::string& text = target.key.empty() ? target.prefix : target.key;
  const std::string database =
      target.database == 0 ? "" : fmt::format("{}/", target.database);
  if (!target.socket_path.empty()) {
    target.name = fmt::format("redis+unix://{}?{}={}",
                              Escape(target.socket_path), what, Escape(text));
  } else {
    const bool is_v6 = target.host.find(':') != std::string::npos;
    target.name = fmt::format(
        "{}://{}{}{}:{}/{}{}{}", target.is_tls ? "rediss" : "redis",
        is_v6 ? "[" : "", Escape(target.host), is_v6 ? "]" : "", target.port,
        database, target.key.empty() ? "" : "?key=", Escape(text));
  }
  return target;
}

}  // namespace haulway::redis
