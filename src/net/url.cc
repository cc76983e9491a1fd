#include "net/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <memory>

#include "base/ascii.h"
#include "base/text.h"
#include "haulway/open.h"
#include "net/libcurl.h"

namespace haulway::net {

namespace {

struct FreeUrl {
  void operator()(CURLU* url) const { Curl().url_cleanup(url); }
};
using Handle = std::unique_ptr<CURLU, FreeUrl>;

struct FreeText {
  void operator()(char* text) const { Curl().free(text); }
};

std::string Part(CURLU* url, CURLUPart part, unsigned flags = 0) {
  char* text = nullptr;
  if (Curl().url_get(url, part, &text, flags) != CURLUE_OK) return {};
  const std::unique_ptr<char, FreeText> owner(text);
  return text;
}

// Shows nothing of the URL: parsed wrongly, any part of it may hold a password.
Status NoUrl(const char* why) {
  return Status(Code::kInvalidArgument,
                fmt::format("{}: expected http(s)://HOST[:PORT]/PATH", why));
}

// Percent-encodes the characters that a URL cannot hold.
std::string EncodeLoosely(std::string_view text) {
  std::string encoded;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= 0x20 || byte >= 0x7F || c == '"' || c == '<' || c == '>' ||
        c == '\\' || c == '^' || c == '`' || c == '{' || c == '|' || c == '}') {
      encoded += fmt::format("%{:02X}", byte);
    } else {
      encoded += c;
    }
  }
  return encoded;
}

Result<Url> Parts(CURLU* handle) {
  Url url;
  url.scheme = Part(handle, CURLUPART_SCHEME);
  if (url.scheme != "http" && url.scheme != "https") {
    return NoUrl("the URL's scheme is not served");
  }
  url.host = LowerCase(Part(handle, CURLUPART_HOST));
  if (url.host.empty()) return NoUrl("the URL names no host");
  const std::string port = Part(handle, CURLUPART_PORT, CURLU_DEFAULT_PORT);
  std::from_chars(port.data(), port.data() + port.size(), url.port);
  url.path = Part(handle, CURLUPART_PATH);
  if (url.path.empty()) url.path = "/";
  url.query = Part(handle, CURLUPART_QUERY);
  url.user = Part(handle, CURLUPART_USER, CURLU_URLDECODE);
  url.password = Part(handle, CURLUPART_PASSWORD, CURLU_URLDECODE);
  return url;
}

// Returns the value of a query parameter, or nullopt.
std::optional<std::string_view> Parameter(std::string_view query,
                                          std::string_view name) {
  while (!query.empty()) {
    const size_t end = query.find('&');
    const std::string_view pair = query.substr(0, end);
    const size_t equals = pair.find('=');
    if (equals != pair.npos && pair.substr(0, equals) == name) {
      return pair.substr(equals + 1);
    }
    if (end == query.npos) break;
    query.remove_prefix(end + 1);
  }
  return std::nullopt;
}

std::optional<Expiry> ExpiryAt(int64_t seconds) {
  const auto time = static_cast<time_t>(seconds);
  tm parts{};
  if (gmtime_r(&time, &parts) == nullptr) return std::nullopt;
  std::array<char, 64> text{};
  if (strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts) == 0) {
    return std::nullopt;
  }
  return Expiry{seconds, text.data()};
}

// Parses `text`, relative to `base` if that is not empty.
Result<Url> Understand(const std::string& base, std::string_view text) {
  if (text.find('\0') != text.npos) return NoUrl("the URL holds a zero byte");
  HAULWAY_TRY(LoadLibcurl());
  const std::string encoded = EncodeLoosely(text.substr(0, text.find('#')));
  const Handle handle(Curl().url());
  if (handle == nullptr) return Status(Code::kLimit, "out of memory");
  for (const std::string* one : {&base, &encoded}) {
    if (one == &base && base.empty()) continue;
    if (Curl().url_set(handle.get(), CURLUPART_URL, one->c_str(),
                       CURLU_NON_SUPPORT_SCHEME | CURLU_PATH_AS_IS) !=
        CURLUE_OK) {
      return NoUrl("the URL cannot be understood");
    }
  }
  return Parts(handle.get());
}

}  // namespace

std::string Url::Text() const {
  const bool usual = port == (scheme == "https" ? 443 : 80);
  return fmt::format("{}://{}{}{}{}{}", scheme, host,
                     usual ? "" : fmt::format(":{}", port), path,
                     query.empty() ? "" : "?", query);
}

std::string Url::Shown() const {
  const bool usual = port == (scheme == "https" ? 443 : 80);
  return Escape(fmt::format("{}://{}{}{}{}", scheme, host,
                            usual ? "" : fmt::format(":{}", port), path,
                            query.empty() ? "" : "?..."));
}

Result<Url> ParseUrl(std::string_view text) { return Understand("", text); }

Result<Url> ResolveUrl(const Url& base, std::string_view location) {
  return Understand(base.Text(), location);
}

}  // namespace haulway::net

namespace haulway {

std::string ShownName(std::string_view uri) {
  const size_t scheme = uri.find("://");
  if (scheme == uri.npos) return std::string(uri);
  const size_t host = scheme + 3;
  const size_t end = std::min(uri.find_first_of("/?#", host), uri.size());
  const size_t at = uri.substr(host, end - host).rfind('@');
  const size_t begin = at == uri.npos ? host : host + at + 1;
  std::string_view rest = uri.substr(begin);
  const size_t query = rest.find('?');
  std::string shown(uri.substr(0, host));
  shown += rest.substr(0, query);
  if (query != rest.npos) shown += "?...";
  return shown;
}

}  // namespace haulway

namespace haulway::net {

std::optional<Expiry> ExpiryOf(const Url& url) {
  for (const std::string_view store : {"X-Amz-", "X-Goog-"}) {
    const auto date = Parameter(url.query, fmt::format("{}Date", store));
    const auto lasts = Parameter(url.query, fmt::format("{}Expires", store));
    if (!date.has_value() || !lasts.has_value()) continue;
    const auto seconds = ParseNumber<int64_t>(*lasts);
    tm parts{};
    const std::string text(*date);
    const char* const end = strptime(text.c_str(), "%Y%m%dT%H%M%SZ", &parts);
    if (!seconds.has_value() || *seconds < 0 || *seconds > 1'000'000'000 ||
        end == nullptr || *end != '\0') {
      return std::nullopt;
    }
    return ExpiryAt(int64_t{timegm(&parts)} + *seconds);
  }
  if (const auto expires = Parameter(url.query, "Expires")) {
    const auto seconds = ParseNumber<int64_t>(*expires);
    if (seconds.has_value() && *seconds >= 0) return ExpiryAt(*seconds);
  }
  return std::nullopt;
}

}  // namespace haulway::net
