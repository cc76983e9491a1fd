// A source for an object behind a URL. Reads ranges, in few requests, of one
// version of the object.

#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"
#include "net/http_client.h"

namespace haulway::net {

// The object and how to request it.
struct HttpTarget {
  std::string url;
  // For messages and as the source's name; if empty, the URL in a form that is
  // safe to show.
  std::string name;
  // As in HttpRequest; used for every request.
  std::vector<HttpHeader> headers;
  std::function<Status(HttpAttempt* attempt)> prepare;
  std::function<Verdict(const HttpResponse& response)> judge;
  // Called with the response in which the whole object came, and its bytes; a
  // failure is that of opening.
  std::function<Status(const HttpResponse& response,
                       std::span<const std::byte> bytes)>
      check;
  // Returns the target for a relative path in the object's folder. If null, the
  // last segment of the URL's path is replaced.
  std::function<Result<HttpTarget>(std::string_view path)> neighbour;
  // Largest object that is read whole; by default half of the memory.
  std::optional<uint64_t> most_whole_bytes = std::nullopt;
};

// Opens the object by requesting its first bytes; the response states its size
// and version. If the server does not support ranges, the object is read whole
// into memory, once; fails with kLimit if it is too large. Later responses for
// another version fail with kCorrupt. Fails as HttpClient::Send() does.
Result<std::shared_ptr<const ByteSource>> OpenHttpSource(
    std::shared_ptr<HttpClient> client, HttpTarget target);

// Opens the URL of a user, with its own client. A URL whose path ends in '/' is
// first treated as a folder: opens the first of AllUsualNames(variant), or a
// directory's ".metadata", that exists or, if there is none, the URL itself.
Result<std::shared_ptr<const ByteSource>> OpenUrl(
    std::string_view url, const RemoteOptions& options,
    std::string_view variant = {});

}  // namespace haulway::net
