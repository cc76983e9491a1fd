// URLs: taken apart, put together, and made safe to show.

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
  int port = 0;        // 80 or 443 where none is given.
  std::string path;    // From the first slash; encoded.
  std::string query;   // Behind the question mark; encoded.
  std::string user;
  std::string password;

  // The URL without user and password, to ask for.
  std::string Text() const;
  // The URL without what may be secret, for messages: of user, password and
  // query nothing is left.
  std::string Shown() const;
  bool SameOrigin(const Url& other) const {
    return scheme == other.scheme && host == other.host && port == other.port;
  }
};

// Encodes blanks, control bytes and what is not ASCII, leaves %XX as it is,
// and drops the fragment. Fails with kInvalidArgument for what is no http(s)
// URL; the message shows nothing that may be secret.
Result<Url> ParseUrl(std::string_view text);

// Where a Location header leads, seen from `base`. Fails as ParseUrl() does.
Result<Url> ResolveUrl(const Url& base, std::string_view location);

// When a presigned URL expires.
struct Expiry {
  int64_t time = 0;  // Seconds since 1970.
  std::string text;  // The same as ISO 8601.
};
// Returns nullopt for a URL that is not presigned, or does not say when.
std::optional<Expiry> ExpiryOf(const Url& url);

}  // namespace haulway::net
