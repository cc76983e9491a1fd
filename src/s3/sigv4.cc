#include "s3/sigv4.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>

#include "base/ascii.h"
#include "base/sha256.h"
#include "base/text.h"

namespace haulway::s3 {

namespace {

// Headers that a proxy may change or that a client adds last: those that
// botocore does not sign.
constexpr std::string_view kNotSigned[] = {"authorization",
                                           "baggage",
                                           "connection",
                                           "expect",
                                           "keep-alive",
                                           "proxy-authenticate",
                                           "proxy-authorization",
                                           "proxy-connection",
                                           "te",
                                           "traceparent",
                                           "tracestate",
                                           "trailer",
                                           "transfer-encoding",
                                           "upgrade",
                                           "user-agent",
                                           "x-amzn-trace-id"};

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

using Digest = std::array<std::byte, 32>;

Digest Hmac(std::span<const std::byte> key, std::string_view text) {
  Digest out{};
  unsigned size = out.size();
  ::HMAC(::EVP_sha256(), key.data(), static_cast<int>(key.size()),
         reinterpret_cast<const unsigned char*>(text.data()), text.size(),
         reinterpret_cast<unsigned char*>(out.data()), &size);
  return out;
}

// Trims `value` and collapses each run of spaces to one.
std::string Folded(std::string_view value) {
  std::string folded;
  bool pending = false;
  for (const char c : value) {
    if (IsSpace(c)) {
      pending = !folded.empty();
      continue;
    }
    if (pending) folded += ' ';
    pending = false;
    folded += c;
  }
  return folded;
}

// Returns the headers to sign, including Host: lower case, sorted.
Pairs SignedHeaders(const RequestToSign& request) {
  Pairs headers{{"host", request.host}};
  for (const auto& [name, value] : request.headers) {
    std::string lower = LowerCase(name);
    if (std::ranges::find(kNotSigned, lower) != std::end(kNotSigned)) continue;
    const auto same = std::ranges::find(
        headers, lower, &std::pair<std::string, std::string>::first);
    if (same != headers.end()) {
      same->second += "," + Folded(value);
    } else {
      headers.emplace_back(std::move(lower), Folded(value));
    }
  }
  std::ranges::sort(headers);
  return headers;
}

std::string NamesOf(const Pairs& headers) {
  std::string names;
  for (const auto& [name, value] : headers) {
    if (!names.empty()) names += ';';
    names += name;
  }
  return names;
}

std::string ScopeOf(const SigningKey& key, int64_t time) {
  return fmt::format("{}/{}/s3/aws4_request", AmzDate(time).substr(0, 8),
                     key.region);
}

}  // namespace

int64_t UnixTime() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

std::string CanonicalQuery(const Pairs& query) {
  Pairs encoded;
  encoded.reserve(query.size());
  for (const auto& [name, value] : query) {
    encoded.emplace_back(UriEncode(name, false), UriEncode(value, false));
  }
  std::ranges::sort(encoded);
  std::string text;
  for (const auto& [name, value] : encoded) {
    if (!text.empty()) text += '&';
    text += name + '=' + value;
  }
  return text;
}

std::string AmzDate(int64_t time) {
  const auto seconds = static_cast<std::time_t>(time);
  std::tm parts{};
  ::gmtime_r(&seconds, &parts);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", parts.tm_year + 1900,
                     parts.tm_mon + 1, parts.tm_mday, parts.tm_hour,
                     parts.tm_min, parts.tm_sec);
}

std::string HexSha256(std::string_view bytes) {
  Sha256 digest;
  digest.Update(Bytes(bytes));
  return Hex(digest.Finish());
}

std::string CanonicalRequest(const RequestToSign& request) {
  const Pairs headers = SignedHeaders(request);
  std::string text =
      fmt::format("{}\n{}\n{}\n", request.method,
                  request.path.empty() ? "/" : UriEncode(request.path, true),
                  CanonicalQuery(request.query));
  for (const auto& [name, value] : headers) {
    text += fmt::format("{}:{}\n", name, value);
  }
  return text + fmt::format("\n{}\n{}", NamesOf(headers), request.payload);
}

std::string Signature(std::string_view canonical_request, const SigningKey& key,
                      int64_t time) {
  const std::string date = AmzDate(time);
  const std::string to_sign =
      fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", date, ScopeOf(key, time),
                  HexSha256(canonical_request));
  std::string first = "AWS4" + key.secret_key;
  Digest chained = Hmac(Bytes(first), date.substr(0, 8));
  ::explicit_bzero(first.data(), first.size());
  for (const std::string_view part :
       {std::string_view(key.region), std::string_view("s3"),
        std::string_view("aws4_request"), std::string_view(to_sign)}) {
    chained = Hmac(chained, part);
  }
  return Hex(chained);
}

Pairs SignHeaders(const RequestToSign& request, const SigningKey& key,
                  int64_t time) {
  RequestToSign full = request;
  full.headers.emplace_back("x-amz-content-sha256", request.payload);
  full.headers.emplace_back("x-amz-date", AmzDate(time));
  if (!key.session_token.empty()) {
    full.headers.emplace_back("x-amz-security-token", key.session_token);
  }
  const std::string signature = Signature(CanonicalRequest(full), key, time);
  full.headers.emplace_back(
      "Authorization",
      fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, "
                  "Signature={}",
                  key.access_key, ScopeOf(key, time),
                  NamesOf(SignedHeaders(full)), signature));
  return std::move(full.headers);
}

std::string PresignQuery(const RequestToSign& request, const SigningKey& key,
                         int64_t time, int64_t expires) {
  RequestToSign full = request;
  full.payload = kUnsignedPayload;
  full.query.insert(
      full.query.end(),
      {{"X-Amz-Algorithm", "AWS4-HMAC-SHA256"},
       {"X-Amz-Credential", key.access_key + "/" + ScopeOf(key, time)},
       {"X-Amz-Date", AmzDate(time)},
       {"X-Amz-Expires", std::to_string(expires)},
       {"X-Amz-SignedHeaders", NamesOf(SignedHeaders(full))}});
  if (!key.session_token.empty()) {
    full.query.emplace_back("X-Amz-Security-Token", key.session_token);
  }
  return CanonicalQuery(full.query) +
         "&X-Amz-Signature=" + Signature(CanonicalRequest(full), key, time);
}

}  // namespace haulway::s3
