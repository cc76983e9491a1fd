// An HttpClient makes HTTP requests, many at once, and checks what libcurl
// leaves to its callers: that a 206 is the range that was asked for, that its
// body is as long as it says, that it is not coded, and that the object is
// still the same.
//
// Redirects are followed here, without credentials where they lead elsewhere.
// What may succeed later is made again, with jitter and within one budget; a
// range goes on at its first missing byte.
//
// Threads: all of it may be called from many threads at once. The calling
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

// What a request is about to be sent as. Neither the Host header nor those that
// the client makes itself (Range, If-Match, Accept-Encoding) stand in it.
struct HttpAttempt {
  std::string method;
  std::string url;  // Without user and password.
  std::vector<HttpHeader> headers;
  // "bytes=0-99" where a range is asked for.
  std::string range;
};

struct HttpResponse {
  int status = 0;
  std::vector<HttpHeader> headers;  // Names in lower case; of the last answer.
  // The body of an answer, if the body went nowhere else; cut at
  // HttpRequest::max_body.
  std::string body;
  uint64_t bytes = 0;  // That went into HttpRequest::into.
  // Size of the whole object, if the answer says so.
  std::optional<uint64_t> total;
  // Where the redirects ended; empty without one.
  std::string resolved_url;

  // The value of the first header of that name, in lower case; empty if there
  // is none.
  std::string_view Header(std::string_view name) const;
};

// What tells whether an object is still the one that was opened.
struct Validator {
  std::string etag;           // With its quotes; empty if unknown.
  std::string last_modified;  // As the server wrote it; empty if unknown.
  std::optional<uint64_t> total;

  // Whether it may stand in If-Match (RFC 9110 8.8.1).
  bool strong() const { return !etag.empty() && !etag.starts_with("W/"); }
};

enum class Verdict : uint8_t {
  kUsual,   // As the client takes that status.
  kRetry,   // To be made again, with a new prepare(), at the cost of a retry.
  kTake,    // An answer for the caller, whatever its status is.
  kDenied,  // A refusal of whoever asks, whatever its status is.
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;  // As the user typed it.
  // For the origin of `url` only, beside those of the options.
  std::vector<HttpHeader> headers;
  // Sent one after another; borrowed until the call returns.
  std::vector<std::span<const std::byte>> body;
  // Sent instead, if it is open: so many bytes of a file, read while they are
  // sent. Whoever changes the file meanwhile changes what is sent.
  FileBytes file;
  uint64_t file_bytes = 0;

  // Asks for a part, of a byte or more, for which a 206 or a 200 is taken.
  std::optional<ByteRange> range;
  // Where the bytes of the range go; as long as the range. They arrive in
  // order, so that on failure the first ones may be there.
  std::span<std::byte> into;
  // Takes the body of a 200, piece by piece, instead of `into` and
  // HttpResponse::body. Once it was called the request is not made again.
  std::function<Status(std::span<const std::byte> piece)> take;
  // Makes the answer's object be this one, by If-Match or If-Unmodified-Since
  // and by looking at the answer.
  Validator expect;
  // Where an earlier answer led; asked first, without credentials if it is
  // elsewhere, and `url` again if it refuses (an expired URL of a CDN).
  std::string resolved_url;

  // How long after a cancellation the request may still take, for what removes
  // what a cancelled call leaves.
  std::chrono::milliseconds grace{0};

  // Called before every attempt at the origin of `url`: adds headers that
  // depend on the time, or changes the URL.
  std::function<Status(HttpAttempt* attempt)> prepare;
  // Called with every answer; kUsual follows a redirect.
  std::function<Verdict(const HttpResponse& response)> judge;
  uint64_t max_body = uint64_t{1} << 20;
};

class HttpClient {
 public:
  // Fails with kInvalidArgument for headers that are none.
  static Result<std::shared_ptr<HttpClient>> Make(RemoteOptions options);
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;
  ~HttpClient();

  // Makes a request. Fails with kNotFound (404, 410), kPermissionDenied (401,
  // 403, 407), kIoError with errno EKEYREJECTED (the server's certificate does
  // not verify), kTimeout, kUnavailable (no connection, 429, 5xx: retries are
  // used up), kCorrupt (the object changed, the answer is not what was asked
  // for), kUnsupported (coded bodies, no ranges), kInvalidArgument (no URL, a
  // client's certificate that cannot be read), kCancelled and kIoError (other
  // statuses). For ranges, 416 is no failure if it says how long the object is.
  // Messages end in the URL as it may be shown.
  // `cancel` ends it as options().cancel and a CancelScope do.
  Result<HttpResponse> Send(const HttpRequest& request,
                            const std::atomic<bool>* cancel = nullptr);

  // Makes requests at the same time, as many as options().connections allow.
  // Returns the first failure, and gives up the others then. The responses are
  // parallel to the requests.
  Result<std::vector<HttpResponse>> SendMany(
      std::span<const HttpRequest> requests,
      const std::atomic<bool>* cancel = nullptr);

  const RemoteOptions& options() const { return options_; }
  RemoteStats stats() const;
  // Notes that an object has nothing to be recognised by.
  void NoteUnvalidated();

 private:
  class Pool;
  class Run;
  explicit HttpClient(RemoteOptions options);
  const RemoteOptions options_;
  const std::unique_ptr<Pool> pool_;
};

// The failure that an answer is.
Status StatusOfAnswer(const HttpResponse& response);

}  // namespace haulway::net
