// Parses and formats URLs, and makes them safe to show.

#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "haulway/status.h"

namespace haulway::net {

// An absolute http or https URL.
struct Url {
  std::string scheme;  // Lower case.
  std::string host;    // Lower case, IPv6 in brackets.
  int port = 0;        // 80 or 443 by default.
  std::string path;    // Starts with a slash; encoded.
  std::string query;   // After the question mark; encoded.
  std::string user;
  std::string password;

  // Returns the URL without user and password, for requests.
  std::string Text() const;
  // Returns the URL without user, password and query, for messages.
  std::string Shown() const;
  bool SameOrigin(const Url& other) const {
    return scheme == other.scheme && host == other.host && port == other.port;
  }
};

// Parses an http(s) URL. Encodes blanks, control characters and non-ASCII
// bytes, keeps %XX, and drops the fragment. Fails with kInvalidArgument for any
// other text; the message shows no secrets.
Result<Url> ParseUrl(std::string_view text);

// Resolves a Location header relative to `base`. Fails as ParseUrl() does.
Result<Url> ResolveUrl(const Url& base, std::string_view location);

// The expiry of a presigned URL.
struct Expiry {
  int64_t time = 0;  // Seconds since 1970.
  std::string text;  // The same time in ISO 8601.
};
// Returns nullopt if the URL is not presigned or has no expiry.
std::optional<Expiry> ExpiryOf(const Url& url);

}  // namespace haulway::net
