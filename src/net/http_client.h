// An HttpClient makes HTTP requests, several at once, and checks what libcurl
// leaves to its callers: that a 206 response is the requested range, that its
// body has the stated length and no content coding, and that the object is
// still the same version.
//
// The client follows redirects itself, without credentials to other origins.
// Failures that may be temporary are retried, with jitter and within one
// budget; a range continues at its first missing byte.
//
// Threads: all methods may be called from many threads at once. The calling
// thread does the work; connections are kept for the next call.

#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "haulway/open.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::net {

// A request before it is sent. Without the Host header and the headers that the
// client adds itself (Range, If-Match, Accept-Encoding).
struct HttpAttempt {
  std::string method;
  std::string url;  // Without user and password.
  std::vector<HttpHeader> headers;
  // "bytes=0-99" if a range is requested.
  std::string range;
};

struct HttpResponse {
  int status = 0;
  // The headers of the last response; names in lower case.
  std::vector<HttpHeader> headers;
  // The response body, unless it went elsewhere; cut at HttpRequest::max_body.
  std::string body;
  uint64_t bytes = 0;  // Bytes written to HttpRequest::into.
  // Size of the whole object, if the response states it.
  std::optional<uint64_t> total;
  // Whether the protocol, HTTP/2 or later, marks the end of every body.
  bool is_multiplexed = false;
  // Final URL after redirects; empty without redirects.
  std::string resolved_url;

  // Returns the value of the first header with that name (lower case), or an
  // empty string.
  std::string_view Header(std::string_view name) const;
};

// Identifies the version of an object.
struct Validator {
  std::string etag;           // With its quotes; empty if unknown.
  std::string last_modified;  // As the server wrote it; empty if unknown.
  std::optional<uint64_t> total;

  // Returns whether the ETag may be used in If-Match (RFC 9110 8.8.1).
  bool strong() const { return !etag.empty() && !etag.starts_with("W/"); }
};

enum class Verdict : uint8_t {
  kUsual,   // Handle the status as usual.
  kAgain,   // Make the request again at once, with a new prepare(). Requires:
            // the number of times is bounded.
  kRetry,   // Make the request again, with a new prepare(), as a retry.
  kTake,    // Return the response to the caller, whatever its status.
  kDenied,  // Fail: the credentials were refused, whatever the status.
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // As the user wrote it.
  // Sent to the origin of `url` only, in addition to those of the options.
  std::vector<HttpHeader> headers;
  // Request body, in parts; borrowed until the call returns.
  std::vector<std::span<const std::byte>> body;
  // Request body in a file, used instead of `body` if the descriptor is open:
  // `file_bytes` bytes, read while sending. If the file is changed meanwhile,
  // the change is sent.
  FileBytes file;
  uint64_t file_bytes = 0;

  // Requests a part of at least one byte. A 206 or a 200 response is accepted.
  std::optional<ByteRange> range;
  // Memory for the range, of the same length. Bytes arrive in order, so on
  // failure the first ones may have been written.
  std::span<std::byte> into;
  // Takes the body of a 200 response instead of `into` and HttpResponse::body.
  std::vector<std::byte>* whole = nullptr;
  uint64_t max_whole = 0;  // A longer body fails with kLimit.
  // Requires this version of the object, by If-Match or If-Unmodified-Since and
  // by checking the response.
  Validator expect;
  // Where an earlier response redirected to. Tried first, without credentials
  // if it has another origin. If it refuses (e.g. an expired URL of a CDN),
  // `url` is tried again.
  std::string resolved_url;

  // Time that the request may still take after a cancellation; for requests
  // that clean up after a cancelled call.
  std::chrono::milliseconds grace{0};

  // Called before every attempt at the origin of `url`: adds headers that
  // depend on the time, or changes the URL.
  std::function<Status(HttpAttempt* attempt)> prepare;
  // Called with every response; for a redirect, kUsual follows it.
  std::function<Verdict(const HttpResponse& response)> judge;
  uint64_t max_body = uint64_t{1} << 20;
};

class HttpClient {
 public:
  // Fails with kInvalidArgument for invalid headers.
  static Result<std::shared_ptr<HttpClient>> Make(RemoteOptions options);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Makes a request. Fails with kNotFound (404, 410), kPermissionDenied (401,
  // 403, 407), kIoError with errno EKEYREJECTED (the server's certificate does
  // not verify), kTimeout, kUnavailable (no connection, 429, 5xx: retries are
  // used up), kCorrupt (the object changed, or the response does not match the
  // request), kUnsupported (content codings, no ranges), kInvalidArgument
  // (invalid URL, unreadable client certificate), kCancelled, and kIoError
  // (other statuses). For ranges, 416 is not a failure if it states the
  // object's size. Messages end with the URL in a form that is safe to show.
  // `cancel` cancels the call, like options().cancel and a CancelScope.
  Result<HttpResponse> Send(const HttpRequest& request,
                            const std::atomic<bool>* cancel = nullptr);

  // Makes requests concurrently, as many as options().connections allow. On the
  // first failure cancels the others and returns it. The responses are parallel
  // to the requests.
  Result<std::vector<HttpResponse>> SendMany(
      std::span<const HttpRequest> requests,
      const std::atomic<bool>* cancel = nullptr);

  const RemoteOptions& options() const { return options_; }
  RemoteStats stats() const;
  // Records that an object has neither ETag nor Last-Modified.
  void NoteUnvalidated();

 private:
  class Pool;
  class Run;
  explicit HttpClient(RemoteOptions options);
  const RemoteOptions options_;
  const std::unique_ptr<Pool> pool_;
};

// Returns the failure that corresponds to the status of a response.
Status StatusOfAnswer(const HttpResponse& response);

}  // namespace haulway::net
