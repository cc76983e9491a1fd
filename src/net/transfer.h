// One request in progress: consecutive attempts, each run by a libcurl handle,
// until there is a response or a permanent failure.

#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "net/answer.h"
#include "net/http_client.h"
#include "net/libcurl.h"
#include "net/stall_clock.h"
#include "net/url.h"

namespace haulway::net {

struct FreeEasy {
  void operator()(CURL* easy) const { Curl().easy_cleanup(easy); }
};
struct FreeList {
  void operator()(curl_slist* list) const { Curl().slist_free_all(list); }
};

// A Transfer runs the attempts of one request. Threads: one at a time.
// Requires: `options` and `request` outlive the Transfer, which is not moved.
class Transfer {
 public:
  using Clock = StallClock::Clock;

  enum class Next : uint8_t {
    kDone,    // response() is the result.
    kFailed,  // status() is the failure.
    kRetry,   // Failed, perhaps temporarily; status() is the failure.
    // Try again at once, not as a retry: a redirect, or a closed idle
    // connection.
    kAgain,
  };

  Transfer(const RemoteOptions& options, const HttpRequest& request)
      : options_(options),
        request_(request),
        expect_(request.expect),
        clock_(options.stall_timeout) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Prepares the next attempt and returns the handle, which the Transfer owns.
  // Fails for errors that no attempt can avoid.
  Result<CURL*> Begin(Clock::time_point now);
  // Evaluates the attempt.
  Next Finish(CURLcode code);
  // Ends an attempt from outside, with a failure that may be temporary.
  Next GiveUp(Status why);

  // Returns whether too few bytes were transferred in the last
  // options.stall_timeout.
  bool Stalled(Clock::time_point now);

  HttpResponse& response() { return response_; }
  const Status& status() const { return status_; }
  // The minimum time before the next attempt, from Retry-After.
  std::chrono::milliseconds retry_after() const { return retry_after_; }
  // Returns whether the last attempt added bytes that need not be requested
  // again.
  bool advanced() const { return done_ > done_before_; }
  // Bytes of response bodies, over all attempts.
  uint64_t received() const { return received_; }
  // Returns the URL for messages, without secrets.
  std::string Shown() const;

 private:
  enum class Mode : uint8_t { kHead, kInto, kTake, kText };

  Status SetUp(const HttpAttempt& attempt);
  Status SetTrust(const std::string& url);
  void SetProxy();
  Status AddHeaders(const HttpAttempt& attempt);
  // Decides what to do with the body. Requires: the head is complete.
  Status Decide();
  Status TooLarge() const;
  Status TakeHeader(std::string_view line);
  Status TakeBody(std::span<const std::byte> piece);
  Next Answered();
  Next Redirected(std::string_view location);
  Next Ranged();
  Next Retry(Status why);
  void BackToOrigin();
  Next Fail(Status why);
  std::string Reason(CURLcode code) const;
  std::optional<ByteRange> Missing() const;

  size_t ReadFile(std::span<char> out);

  static int OnSocket(void*, curl_socket_t socket, curlsocktype);
  static size_t OnHeader(char* data, size_t size, size_t count, void* self);
  static size_t OnBody(char* data, size_t size, size_t count, void* self);
  static size_t OnSend(char* data, size_t size, size_t count, void* self);
  static int OnSeek(void* self, curl_off_t offset, int origin);

  const RemoteOptions& options_;
  const HttpRequest& request_;
  Validator expect_;
  std::unique_ptr<CURL, FreeEasy> easy_;
  std::unique_ptr<curl_slist, FreeList> headers_;
  std::array<char, CURL_ERROR_SIZE> error_{};

  // Where the request is sent.
  std::optional<Url> origin_;
  Url current_;
  bool at_origin_ = true;
  bool resolved_ = false;  // Whether `current_` comes from an earlier response.
  int redirects_ = 0;
  int idle_resets_ = 0;
  int idle_failures_ = 0;  // In a row, without a byte.

  // What has arrived.
  HttpResponse response_;
  Status status_;
  std::chrono::milliseconds retry_after_{0};
  uint64_t done_ = 0;  // Bytes of `into`.
  uint64_t done_before_ = 0;
  uint64_t received_ = 0;

  // State of this attempt.
  Mode mode_ = Mode::kHead;
  BodyPlan plan_;
  uint64_t body_bytes_ = 0;
  uint64_t head_bytes_ = 0;
  bool enough_ = false;  // The rest is not wanted.
  Status broken_;        // The failure of a callback.
  uint64_t sent_ = 0;
  uint64_t arrived_ = 0;  // Bytes of heads and bodies, over all attempts.
  StallClock clock_;
};

}  // namespace haulway::net
