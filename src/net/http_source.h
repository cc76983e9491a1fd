// An object behind a URL as a source: read by ranges, in few requests, and
// always the same object.

#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"
#include "net/http_client.h"

namespace haulway::net {

// What is asked for, and how.
struct HttpTarget {
  std::string url;
  // For messages and as the source's name; empty: the URL as it may be shown.
  std::string name;
  // As in HttpRequest, of every request.
  std::vector<HttpHeader> headers;
  std::function<Status(HttpAttempt* attempt)> prepare;
  std::function<Verdict(const HttpResponse& response)> judge;
  // What a path down from the object's folder names; null: the URL's path with
  // its last segment replaced.
  std::function<Result<HttpTarget>(std::string_view path)> neighbour;
  // Largest object that is read whole; by default half of the memory.
  std::optional<uint64_t> most_whole_bytes = std::nullopt;
};

// Opens it by asking for its first bytes, from whose answer size and validator
// are known. Where ranges are not served the object is read whole into memory,
// once; kLimit if it is too long. Later answers of another object fail with
// kCorrupt. Fails as HttpClient::Send() does.
Result<std::shared_ptr<const ByteSource>> OpenHttpSource(
    std::shared_ptr<HttpClient> client, HttpTarget target);

// The files by which the checkpoint in a folder is opened: the first that is
// there, in the order in which transformers looks for them.
inline constexpr std::array<std::string_view, 4> kCheckpointNames = {
    "model.safetensors.index.json", "model.safetensors",
    "pytorch_model.bin.index.json", "pytorch_model.bin"};

// The same for the URL of a user, with a client of its own. A URL whose path
// ends in '/' is taken for a folder at first: the first of kCheckpointNames
// that is there is opened, and the URL itself where there is none.
Result<std::shared_ptr<const ByteSource>> OpenUrl(std::string_view url,
                                                  const RemoteOptions& options);

}  // namespace haulway::net
