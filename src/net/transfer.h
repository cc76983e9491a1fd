// One request on its way: attempts of it, one after another, each a handle of
// libcurl's, until it is answered or cannot be.

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
#include "net/url.h"

namespace haulway::net {

struct FreeEasy {
  void operator()(CURL* easy) const { Curl().easy_cleanup(easy); }
};
struct FreeList {
  void operator()(curl_slist* list) const { Curl().slist_free_all(list); }
};

// Threads: for one at a time. Requires: `options` and `request` outlive it, and
// it stays where it is.
class Transfer {
 public:
  using Clock = std::chrono::steady_clock;

  enum class Next : uint8_t {
    kDone,    // response() is the answer.
    kFailed,  // status() says why.
    kRetry,   // Something that may pass; status() says what.
    kAgain,   // At once, and at no cost: a redirect, an idle connection that
              // was closed.
  };

  Transfer(const RemoteOptions& options, const HttpRequest& request)
      : options_(options), request_(request) {}
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

  // Makes ready for the next attempt; the handle is the transfer's own. Fails
  // for what no attempt can mend.
  Result<CURL*> Begin(Clock::time_point now);
  // What the attempt came to.
  Next Finish(CURLcode code);
  // Ends an attempt from outside, as one that may succeed another time.
  Next GiveUp(Status why);

  // Whether too little came within the time that the options give.
  bool Stalled(Clock::time_point now);

  HttpResponse& response() { return response_; }
  const Status& status() const { return status_; }
  // The least time that the server wants to be left alone.
  std::chrono::milliseconds retry_after() const { return retry_after_; }
  // Whether the last attempt brought bytes that need not be asked for again.
  bool advanced() const { return done_ > done_before_; }
  // Bytes of bodies, in all attempts.
  uint64_t received() const { return received_; }
  // The URL for messages, without what may be secret.
  std::string Shown() const;

 private:
  enum class Mode : uint8_t { kHead, kInto, kTake, kText };

  Status SetUp(const HttpAttempt& attempt);
  Status SetTrust(const std::string& url);
  void SetProxy();
  Status AddHeaders(const HttpAttempt& attempt);
  Status Decide();  // What is to be done with the body, when the head is there.
  Status TakeHeader(std::string_view line);
  Status TakeBody(std::span<const std::byte> piece);
  Next Answered();
  Next Redirected(std::string_view location);
  Next Ranged();
  Next Retry(Status why);
  Next Fail(Status why);
  std::string Reason(CURLcode code) const;
  std::optional<ByteRange> Missing() const;

  size_t ReadFile(std::span<char> out);

  static size_t OnHeader(char* data, size_t size, size_t count, void* self);
  static size_t OnBody(char* data, size_t size, size_t count, void* self);
  static size_t OnSend(char* data, size_t size, size_t count, void* self);
  static int OnSeek(void* self, curl_off_t offset, int origin);

  const RemoteOptions& options_;
  const HttpRequest& request_;
  std::unique_ptr<CURL, FreeEasy> easy_;
  std::unique_ptr<curl_slist, FreeList> headers_;
  std::array<char, CURL_ERROR_SIZE> error_{};

  // Where it is asked.
  std::optional<Url> origin_;
  Url current_;
  bool at_origin_ = true;
  bool resolved_ = false;  // At where an earlier answer led.
  int redirects_ = 0;
  int idle_resets_ = 0;

  // What has come.
  HttpResponse response_;
  Status status_;
  std::chrono::milliseconds retry_after_{0};
  uint64_t done_ = 0;  // Bytes of `into`.
  uint64_t done_before_ = 0;
  uint64_t received_ = 0;
  bool took_ = false;

  // State of this attempt.
  Mode mode_ = Mode::kHead;
  BodyPlan plan_;
  uint64_t body_bytes_ = 0;
  uint64_t head_bytes_ = 0;
  bool enough_ = false;  // What follows is not wanted.
  Status broken_;        // Why a callback ended it.
  uint64_t sent_ = 0;
  uint64_t moved_ = 0;  // Bytes in both directions.
  uint64_t moved_then_ = 0;
  Clock::time_point then_;
};

}  // namespace haulway::net
