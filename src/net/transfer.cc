#include "net/transfer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "base/ascii.h"
#include "base/posix.h"
#include "base/text.h"
#include "haulway/options.h"
#include "net/arrivals.h"
#include "net/certificates.h"
#include "net/unsent.h"

// Design: libcurl makes one request at a time. It follows no redirect, decodes
// nothing, and takes netrc and proxies from the options only. The head is
// collected line by line. At the body's first byte PlanBody() decides what to
// do with the body, and each piece is copied to its place or discarded. libcurl
// passes on at most 16 KiB at a time whatever its buffer size, so this is one
// copy from its buffer.
//
// Tried instead: CURLOPT_FOLLOWLOCATION, which sends custom headers to other
// hosts, and CURLOPT_RESUME_FROM, which checks nothing.

namespace haulway::net {

namespace {

// Limits for a response head, far above any real one.
constexpr uint64_t kMostHeadBytes = 256 * kKiB;
constexpr size_t kMostHeaders = 1000;
constexpr int kMostRedirects = 10;
// Failures in a row, without a byte, after which the target of a redirect is
// left.
constexpr int kMostFailuresThere = 2;
// Resets of idle connections that are not counted as failures, in a row.
constexpr int kMostIdleResets = 4;
// A large buffer saves system calls for large bodies.
constexpr long kBufferBytes = 1 << 20;

std::string_view TrimEnd(std::string_view text) {
  return text.substr(0, text.find_last_not_of("\r\n \t") + 1);
}

bool IsRedirect(int status) {
  return status == 301 || status == 302 || status == 303 || status == 307 ||
         status == 308;
}

bool MayPass(int status) {
  return status == 408 || status == 429 || status == 500 || status == 502 ||
         status == 503 || status == 504;
}

bool IsHeaderLine(std::string_view name, std::string_view value) {
  const auto breaks = [](char c) {
    return c == '\r' || c == '\n' || c == '\0';
  };
  return !name.empty() && name.find(':') == name.npos &&
         std::ranges::none_of(name, breaks) &&
         std::ranges::none_of(value, breaks);
}

// Returns whether the server's certificate caused the failure.
bool IsUntrusted(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION ||
         code == CURLE_SSL_ISSUER_ERROR || code == CURLE_SSL_INVALIDCERTSTATUS;
}

// Returns the code for any other failure of libcurl.
Code CodeOf(CURLcode code) {
  switch (code) {
    case CURLE_OPERATION_TIMEDOUT:
      return Code::kTimeout;
    case CURLE_OUT_OF_MEMORY:
      return Code::kLimit;
    case CURLE_SSL_CERTPROBLEM:     // The client's own certificate.
    case CURLE_SSL_CACERT_BADFILE:  // The file of trusted certificates.
    case CURLE_URL_MALFORMAT:
      return Code::kInvalidArgument;
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_UNSUPPORTED_PROTOCOL:  // HTTP/0.9; other protocols are excluded.
    case CURLE_BAD_CONTENT_ENCODING:
      return Code::kCorrupt;
    default:
      return Code::kUnavailable;
  }
}

// Returns the reason in a store's error, such as "NoSuchBucket", with `before`
// before it; an empty string for any other body, which may hold secrets.
std::string StoreReason(std::string_view body, std::string_view before) {
  constexpr std::string_view kBegin = "<Code>";
  constexpr size_t kHead = 512;  // The XML declaration, and the first element.
  constexpr size_t kMost = 64;
  const size_t begin = body.substr(0, kHead).find(kBegin);
  if (begin == body.npos) return {};
  body.remove_prefix(begin + kBegin.size());
  const size_t end = body.substr(0, kMost).find("</Code>");
  if (end == body.npos) return {};
  const std::string_view code = body.substr(0, end);
  const bool is_word = std::ranges::all_of(code, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.';
  });
  if (code.empty() || !is_word) return {};
  return fmt::format("{}{}", before, code);
}

bool MayPass(CURLcode code) {
  if (IsUntrusted(code)) return false;
  const Code of = CodeOf(code);
  return of == Code::kTimeout || of == Code::kUnavailable;
}

}  // namespace

std::string_view HttpResponse::Header(std::string_view name) const {
  const auto found = std::ranges::find(headers, name, &HttpHeader::name);
  return found == headers.end() ? std::string_view() : found->value;
}

Status StatusOfAnswer(const HttpResponse& response) {
  const auto fail = [&](Code code, std::string_view what) {
    return Status(
        code, fmt::format("the server answers {} ({}{})", response.status, what,
                          StoreReason(response.body, ": ")));
  };
  // The store began to answer before it failed.
  if (response.status < 300) return fail(Code::kUnavailable, "and an error");
  switch (response.status) {
    case 401:
      return fail(Code::kPermissionDenied, "not authorised");
    case 407:
      return fail(Code::kPermissionDenied, "the proxy asks for a password");
    case 403:
      return fail(Code::kPermissionDenied, "forbidden");
    case 404:
    case 410:
      return Status::FromErrno(
          ENOENT, fmt::format("the server answers {}{}", response.status,
                              StoreReason(response.body, " ")));
    case 408:
    case 504:
      return fail(Code::kTimeout, "it took too long");
    case 412:
      return Status(Code::kCorrupt,
                    "the object changed while it was read: the server answers "
                    "412");
    case 416:
      return fail(Code::kTruncated, "no such range");
    case 429:
      return fail(Code::kUnavailable, "too many requests");
    default:
      break;
  }
  if (response.status >= 500) return fail(Code::kUnavailable, "server error");
  return fail(Code::kIoError, "not expected");
}

std::string Transfer::Shown() const {
  return origin_.has_value() ? origin_->Shown() : std::string("a URL");
}

// Returns the part of the range that has not arrived yet.
std::optional<ByteRange> Transfer::Missing() const {
  if (!request_.range.has_value()) return std::nullopt;
  return ByteRange{request_.range->offset + done_,
                   request_.range->length - done_};
}

Result<CURL*> Transfer::Begin(Clock::time_point now) {
  if (!origin_.has_value()) {
    HAULWAY_ASSIGN(origin_, ParseUrl(request_.url));
    current_ = *origin_;
    if (!request_.resolved_url.empty()) {
      HAULWAY_ASSIGN(current_, ParseUrl(request_.resolved_url));
      at_origin_ = current_.SameOrigin(*origin_);
      resolved_ = true;
      response_.resolved_url = request_.resolved_url;
    }
  }
  mode_ = Mode::kHead;
  plan_ = BodyPlan();
  body_bytes_ = head_bytes_ = sent_ = 0;
  enough_ = false;
  broken_ = Status();
  done_before_ = done_;
  retry_after_ = std::chrono::milliseconds(0);
  if (request_.whole != nullptr) request_.whole->clear();
  std::string led = std::move(response_.resolved_url);
  response_ = HttpResponse();
  response_.resolved_url = std::move(led);
  clock_.Begin(now, arrived_);
  error_[0] = '\0';
  if (easy_ == nullptr) {
    easy_.reset(Curl().easy_init());
    if (easy_ == nullptr) return Status(Code::kLimit, "out of memory");
  } else {
    Curl().easy_reset(easy_.get());
  }

  HttpAttempt attempt{.method = request_.method,
                      .url = current_.Text(),
                      .headers = {},
                      .range = {}};
  if (const auto missing = Missing()) {
    attempt.range = fmt::format("bytes={}-{}", missing->offset,
                                missing->offset + missing->length - 1);
  }
  if (at_origin_) {
    attempt.headers = options_.headers;
    attempt.headers.insert(attempt.headers.end(), request_.headers.begin(),
                           request_.headers.end());
    if (!options_.bearer_token.empty()) {
      attempt.headers.push_back(
          {"Authorization", "Bearer " + options_.bearer_token});
    }
    if (request_.prepare) HAULWAY_TRY(request_.prepare(&attempt));
  }
  HAULWAY_TRY(SetUp(attempt));
  return easy_.get();
}

Status Transfer::SetUp(const HttpAttempt& attempt) {
  CURL* const easy = easy_.get();
  Curl().easy_setopt(easy, CURLOPT_URL, attempt.url.c_str());
  Curl().easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
  Curl().easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
  Curl().easy_setopt(easy, CURLOPT_FOLLOWLOCATION, 0L);
  Curl().easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  Curl().easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
  Curl().easy_setopt(easy, CURLOPT_ERRORBUFFER, error_.data());
  Curl().easy_setopt(easy, CURLOPT_BUFFERSIZE, kBufferBytes);
  Curl().easy_setopt(easy, CURLOPT_USERAGENT, "haulway");
  Curl().easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS,
                     static_cast<long>(options_.connect_timeout.count()));
  Curl().easy_setopt(easy, CURLOPT_TCP_KEEPALIVE, 1L);
  Curl().easy_setopt(easy, CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1);
  Curl().easy_setopt(easy, CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  Curl().easy_setopt(easy, CURLOPT_SOCKOPTFUNCTION, OnSocket);
  Curl().easy_setopt(easy, CURLOPT_HEADERFUNCTION, OnHeader);
  Curl().easy_setopt(easy, CURLOPT_HEADERDATA, this);
  Curl().easy_setopt(easy, CURLOPT_WRITEFUNCTION, OnBody);
  Curl().easy_setopt(easy, CURLOPT_WRITEDATA, this);
  HAULWAY_TRY(SetTrust(attempt.url));
  SetProxy();
  // The default entry would be sent to any host that a redirect leads to.
  if (at_origin_ && !options_.netrc.empty()) {
    Curl().easy_setopt(easy, CURLOPT_NETRC, long{CURL_NETRC_OPTIONAL});
    Curl().easy_setopt(easy, CURLOPT_NETRC_FILE, options_.netrc.c_str());
  }
  if (at_origin_ && !origin_->user.empty()) {
    Curl().easy_setopt(easy, CURLOPT_HTTPAUTH, long{CURLAUTH_BASIC});
    Curl().easy_setopt(easy, CURLOPT_USERNAME, origin_->user.c_str());
    Curl().easy_setopt(easy, CURLOPT_PASSWORD, origin_->password.c_str());
  }
  uint64_t length = request_.file_bytes;
  for (const auto part : request_.body) length += part.size();
  if (attempt.method == "HEAD") {
    Curl().easy_setopt(easy, CURLOPT_NOBODY, 1L);
  } else if (attempt.method == "PUT" || length > 0) {
    Curl().easy_setopt(easy, CURLOPT_UPLOAD, 1L);
    Curl().easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, kBufferBytes);
    Curl().easy_setopt(easy, CURLOPT_INFILESIZE_LARGE,
                       static_cast<curl_off_t>(length));
    Curl().easy_setopt(easy, CURLOPT_READFUNCTION, OnSend);
    Curl().easy_setopt(easy, CURLOPT_READDATA, this);
    Curl().easy_setopt(easy, CURLOPT_SEEKFUNCTION, OnSeek);
    Curl().easy_setopt(easy, CURLOPT_SEEKDATA, this);
  } else if (attempt.method == "POST") {
    Curl().easy_setopt(easy, CURLOPT_POSTFIELDS, "");
    Curl().easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, curl_off_t{0});
  }
  if (attempt.method != "GET" && attempt.method != "HEAD") {
    Curl().easy_setopt(easy, CURLOPT_CUSTOMREQUEST, attempt.method.c_str());
  }
  return AddHeaders(attempt);
}

Status Transfer::SetTrust(const std::string& url) {
  CURL* const easy = easy_.get();
  Curl().easy_setopt(easy, CURLOPT_SSLVERSION, long{CURL_SSLVERSION_TLSv1_2});
  if (options_.insecure) {
    Curl().easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 0L);
    Curl().easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 0L);
  }
  if (!options_.insecure && url.starts_with("https:")) {
    HAULWAY_ASSIGN(const Authorities trusted,
                   FindAuthorities(options_.ca_file, options_.ca_dir));
    // Do not trust libcurl's default locations.
    const auto or_none = [](const std::string& path) {
      return path.empty() ? nullptr : path.c_str();
    };
    Curl().easy_setopt(easy, CURLOPT_CAINFO, or_none(trusted.file));
    Curl().easy_setopt(easy, CURLOPT_CAPATH, or_none(trusted.folder));
  }
  // A client certificate is a credential too.
  if (at_origin_ && !options_.client_certificate.empty()) {
    const std::string& key = options_.client_key.empty()
                                 ? options_.client_certificate
                                 : options_.client_key;
    Curl().easy_setopt(easy, CURLOPT_SSLCERT,
                       options_.client_certificate.c_str());
    Curl().easy_setopt(easy, CURLOPT_SSLKEY, key.c_str());
  }
  return Status();
}

void Transfer::SetProxy() {
  CURL* const easy = easy_.get();
  if (!options_.proxy.empty()) {
    Curl().easy_setopt(easy, CURLOPT_PROXY, options_.proxy.c_str());
    // Not the hosts that the environment names.
    Curl().easy_setopt(easy, CURLOPT_NOPROXY, "");
  } else if (!options_.proxy_from_environment) {
    // libcurl's value for no proxy.
    Curl().easy_setopt(easy, CURLOPT_PROXY, "");
  }
}

Status Transfer::AddHeaders(const HttpAttempt& attempt) {
  curl_slist* list = nullptr;
  bool memory = true;
  const auto add = [&](const std::string& line) {
    curl_slist* const longer = Curl().slist_append(list, line.c_str());
    memory = memory && longer != nullptr;
    if (longer != nullptr) list = longer;
  };
  // Prevents libcurl from waiting for "100 Continue".
  add("Expect:");
  add("Accept-Encoding: identity");
  if (!attempt.range.empty()) add("Range: " + attempt.range);
  if (request_.method == "GET") {
    if (expect_.strong()) {
      add("If-Match: " + expect_.etag);
    } else if (!expect_.last_modified.empty()) {
      add("If-Unmodified-Since: " + expect_.last_modified);
    }
  }
  Status status;
  for (const HttpHeader& header : attempt.headers) {
    if (!IsHeaderLine(header.name, header.value)) {
      status =
          Status(Code::kInvalidArgument,
                 "header is invalid: expected a name, and a value of one line");
      break;
    }
    // libcurl would remove a header written as "name:".
    add(header.value.empty() ? header.name + ";"
                             : header.name + ": " + header.value);
  }
  headers_.reset(list);
  HAULWAY_TRY(std::move(status));
  if (!memory) return Status(Code::kLimit, "out of memory");
  Curl().easy_setopt(easy_.get(), CURLOPT_HTTPHEADER, headers_.get());
  return Status();
}

int Transfer::OnSocket(void*, curl_socket_t socket, curlsocktype) {
  LimitUnsent(socket);
  return CURL_SOCKOPT_OK;
}

size_t Transfer::OnHeader(char* data, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  try {
    transfer.broken_ = transfer.TakeHeader({data, size * count});
  } catch (const std::bad_alloc&) {
    transfer.broken_ = Status(Code::kLimit, "out of memory");
  }
  return transfer.broken_.ok() ? size * count : 0;
}

Status Transfer::TakeHeader(std::string_view line) {
  arrived_ += line.size();
  head_bytes_ += line.size();
  if (mode_ != Mode::kHead) return Status();  // A trailer.
  if (line.starts_with("HTTP/")) {
    response_.headers.clear();
    const size_t blank = line.find(' ');
    const auto status = blank == line.npos
                            ? std::nullopt
                            : ParseNumber<uint64_t>(line.substr(blank + 1, 3));
    if (!status.has_value()) {
      return Status(Code::kCorrupt,
                    fmt::format("{} is no status line", Quote(TrimEnd(line))));
    }
    response_.status = static_cast<int>(*status);
    response_.is_multiplexed = !line.starts_with("HTTP/1");
    return Status();
  }
  if (head_bytes_ > kMostHeadBytes ||
      response_.headers.size() >= kMostHeaders) {
    return Status(Code::kCorrupt,
                  fmt::format("the answer's head has no end: expected at most "
                              "{} bytes and {} headers",
                              kMostHeadBytes, kMostHeaders));
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return Status();  // The empty line after the head.
  std::string_view value = TrimEnd(line.substr(colon + 1));
  while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) {
    value.remove_prefix(1);
  }
  response_.headers.push_back(
      {LowerCase(line.substr(0, colon)), std::string(value)});
  return Status();
}

Status Transfer::Decide() {
  mode_ = Mode::kText;
  const int status = response_.status;
  if (status != 200 && status != 206) return Status();
  // Also after a part of it: bytes of the range are then received again.
  const bool takes = status == 200 && request_.whole != nullptr;
  if (!takes && !request_.range.has_value()) {
    if (request_.method != "GET") return Status();
    HAULWAY_ASSIGN(plan_, PlanBody(response_, std::nullopt, expect_));
    return Status();
  }
  HAULWAY_ASSIGN(
      plan_, PlanBody(response_, takes ? std::nullopt : Missing(), expect_));
  if (plan_.total.has_value()) response_.total = plan_.total;
  mode_ = takes ? Mode::kTake : Mode::kInto;
  if (!takes) return Status();
  if (plan_.open_ended) {
    return Status(Code::kUnsupported,
                  "the server does not say how long the object is: expected "
                  "Content-Length, or a body in chunks");
  }
  done_ = done_before_ = 0;
  const uint64_t length = plan_.length.value_or(0);
  if (length > request_.max_whole) return TooLarge();
  request_.whole->reserve(length);
  return Status();
}

Status Transfer::TooLarge() const {
  return Status(Code::kLimit,
                fmt::format("the server does not serve ranges, and the object "
                            "does not fit into memory: expected at most {} "
                            "bytes",
                            request_.max_whole));
}

size_t Transfer::OnBody(char* data, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  try {
    transfer.broken_ =
        transfer.TakeBody(std::as_bytes(std::span(data, size * count)));
  } catch (const std::bad_alloc&) {
    transfer.broken_ = Status(Code::kLimit, "out of memory");
  }
  const bool goes_on = transfer.broken_.ok() && !transfer.enough_;
  return goes_on ? size * count : 0;
}

Status Transfer::TakeBody(std::span<const std::byte> piece) {
  arrived_ += piece.size();
  received_ += piece.size();
  if (mode_ == Mode::kHead) HAULWAY_TRY(Decide());
  body_bytes_ += piece.size();
  if (mode_ == Mode::kTake) {
    std::vector<std::byte>& whole = *request_.whole;
    if (piece.size() > request_.max_whole - whole.size()) return TooLarge();
    whole.insert(whole.end(), piece.begin(), piece.end());
    return Status();
  }
  if (mode_ == Mode::kText) {
    const uint64_t room = request_.max_body - response_.body.size();
    if (piece.size() > room) {
      const bool failed = response_.status >= 300;
      if (!failed) {
        return Status(Code::kLimit,
                      fmt::format("the answer is too long: expected at most {} "
                                  "bytes",
                                  request_.max_body));
      }
      piece = piece.first(room);
      enough_ = true;
    }
    response_.body.append(reinterpret_cast<const char*>(piece.data()),
                          piece.size());
    return Status();
  }
  if (body_bytes_ <= plan_.skip) return Status();
  const uint64_t before = body_bytes_ - piece.size();
  if (before < plan_.skip) piece = piece.subspan(plan_.skip - before);
  const uint64_t wanted = plan_.bytes - (done_ - done_before_);
  if (piece.size() > wanted) {
    if (plan_.exact) {
      return Status(Code::kCorrupt,
                    fmt::format("the answer is longer than the {} bytes that "
                                "it says it is",
                                plan_.bytes));
    }
    piece = piece.first(wanted);
    enough_ = true;
  }
  const auto out = request_.into.subspan(done_, piece.size());
  std::memcpy(out.data(), piece.data(), piece.size());
  done_ += piece.size();
  ArrivalScope::Tell(out);
  return Status();
}

size_t Transfer::OnSend(char* data, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  size_t room = size * count;
  if (transfer.request_.file.fd >= 0) return transfer.ReadFile({data, room});
  size_t filled = 0;
  uint64_t start = 0;
  for (const auto part : transfer.request_.body) {
    const uint64_t end = start + part.size();
    if (transfer.sent_ < end && room > 0) {
      const uint64_t from = transfer.sent_ - start;
      const size_t bytes = std::min<size_t>(room, part.size() - from);
      std::memcpy(data + filled, part.data() + from, bytes);
      transfer.sent_ += bytes;
      filled += bytes;
      room -= bytes;
    }
    start = end;
  }
  return filled;
}

size_t Transfer::ReadFile(std::span<char> out) {
  const HttpRequest& request = request_;
  const auto part =
      out.first(std::min<uint64_t>(out.size(), request.file_bytes - sent_));
  broken_ = ReadFully(request.file.fd, request.file.offset + sent_,
                      std::as_writable_bytes(part));
  if (!broken_.ok()) return CURL_READFUNC_ABORT;
  sent_ += part.size();
  return part.size();
}

int Transfer::OnSeek(void* self, curl_off_t offset, int origin) {
  if (origin != SEEK_SET || offset < 0) return CURL_SEEKFUNC_FAIL;
  static_cast<Transfer*>(self)->sent_ = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

bool Transfer::Stalled(Clock::time_point now) {
  // Not what OnSend() passed on, a buffer at a time.
  curl_off_t uploaded = 0;
  Curl().easy_getinfo(easy_.get(), CURLINFO_SIZE_UPLOAD_T, &uploaded);
  return clock_.IsStalled(now, arrived_ + static_cast<uint64_t>(uploaded));
}

Transfer::Next Transfer::Retry(Status why) {
  // A mirror that fails once is tried again, because others may have another
  // ETag. After that, another redirect may lead to one that works. The URL may
  // also expire meanwhile.
  idle_failures_ = advanced() ? 0 : idle_failures_ + 1;
  resolved_ = !response_.resolved_url.empty();
  if (idle_failures_ >= kMostFailuresThere) BackToOrigin();
  // The rest must belong to the object whose first bytes have arrived.
  const bool expects_any = !expect_.etag.empty() ||
                           !expect_.last_modified.empty() ||
                           expect_.total.has_value();
  if (advanced() && !expects_any) {
    expect_ = ValidatorOf(response_);
    expect_.total = response_.total;
  }
  status_ = std::move(why).Of(Shown());
  return Next::kRetry;
}

void Transfer::BackToOrigin() {
  resolved_ = false;
  redirects_ = 0;
  idle_failures_ = 0;
  current_ = *origin_;
  at_origin_ = true;
  response_.resolved_url.clear();
}

Transfer::Next Transfer::Fail(Status why) {
  status_ = std::move(why).Of(Shown());
  return Next::kFailed;
}

Transfer::Next Transfer::GiveUp(Status why) { return Retry(std::move(why)); }

// Returns libcurl's description of a failure, unless it may contain a proxy's
// password.
std::string Transfer::Reason(CURLcode code) const {
  const std::string_view said = error_.data();
  const bool is_secret = code == CURLE_COULDNT_RESOLVE_PROXY ||
                         said.find('@') != said.npos ||
                         said.find("://") != said.npos;
  if (said.empty() || is_secret) return Curl().easy_strerror(code);
  return Escape(said);
}

Transfer::Next Transfer::Finish(CURLcode code) {
  if (!broken_.ok()) return Fail(std::move(broken_));
  if (code != CURLE_OK && !enough_) {
    const bool closed = code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR ||
                        code == CURLE_GOT_NOTHING;
    long connects = 1;
    Curl().easy_getinfo(easy_.get(), CURLINFO_NUM_CONNECTS, &connects);
    if (closed && connects == 0 && head_bytes_ == 0 &&
        ++idle_resets_ <= kMostIdleResets) {
      return Next::kAgain;
    }
    // The proxy's response to CONNECT, not the server's.
    long proxy_status = 0;
    Curl().easy_getinfo(easy_.get(), CURLINFO_HTTP_CONNECTCODE, &proxy_status);
    if (proxy_status == 403 || proxy_status == 407) {
      response_.status = static_cast<int>(proxy_status);
      return Fail(proxy_status == 407
                      ? StatusOfAnswer(response_)
                      : Status(Code::kPermissionDenied,
                               "the proxy answers 403 (forbidden)"));
    }
    if (IsUntrusted(code)) {
      return Fail(Status::FromErrno(
          EKEYREJECTED, fmt::format("the server's certificate does not verify: "
                                    "{}",
                                    Reason(code))));
    }
    Status why(CodeOf(code), Reason(code));
    return MayPass(code) ? Retry(std::move(why)) : Fail(std::move(why));
  }
  idle_resets_ = 0;
  if (mode_ == Mode::kHead) {
    Status status = Decide();
    if (!status.ok()) return Fail(std::move(status));
  }
  return Answered();
}

Transfer::Next Transfer::Answered() {
  const int status = response_.status;
  // The URL of an earlier redirect may have expired.
  if (resolved_ && status >= 400 && status < 500 && status != 408 &&
      status != 412 && status != 416 && status != 429) {
    BackToOrigin();
    return Next::kAgain;
  }
  response_.bytes = done_;
  if (const auto wait = ParseRetryAfter(response_.Header("retry-after"),
                                        std::chrono::system_clock::now())) {
    retry_after_ = *wait;
  }
  if (request_.judge) {
    switch (request_.judge(response_)) {
      case Verdict::kTake:
        return Next::kDone;
      case Verdict::kAgain:
        return Next::kAgain;
      case Verdict::kRetry:
        return Retry(StatusOfAnswer(response_));
      case Verdict::kDenied:
        return Fail(Status(
            Code::kPermissionDenied,
            fmt::format(
                "the server answers {} (it does not accept the credentials)",
                status)));
      case Verdict::kUsual:
        break;
    }
  }
  if (IsRedirect(status) && request_.method == "GET") {
    return Redirected(response_.Header("location"));
  }
  if (MayPass(status)) return Retry(StatusOfAnswer(response_));
  if (mode_ == Mode::kInto || status == 416) return Ranged();
  if (status >= 200 && status < 300) {
    const bool wants_object =
        request_.range.has_value() || request_.whole != nullptr;
    if (wants_object && mode_ != Mode::kTake) {
      return Fail(Status(Code::kIoError,
                         fmt::format("the server answers {}, without the "
                                     "object: expected 200 or 206",
                                     status)));
    }
    if (mode_ == Mode::kTake && plan_.length.has_value() &&
        body_bytes_ != *plan_.length) {
      return Retry(Status(Code::kUnavailable,
                          fmt::format("the answer ends early: expected {} "
                                      "bytes, found {}",
                                      *plan_.length, body_bytes_)));
    }
    return Next::kDone;
  }
  Status why = StatusOfAnswer(response_);
  if (status == 400 || status == 403) {
    if (const auto expiry = ExpiryOf(current_)) {
      const bool is_over =
          expiry->time <= std::chrono::system_clock::to_time_t(
                              std::chrono::system_clock::now());
      why = Status(
          why.code(),
          fmt::format("the server answers {}, and the signed URL {} "
                      "at {}",
                      status, is_over ? "expired" : "expires", expiry->text));
    }
  }
  return Fail(std::move(why));
}

Transfer::Next Transfer::Ranged() {
  if (response_.status == 416) {
    const auto found = ParseContentRange(response_.Header("content-range"));
    if (!request_.range.has_value() || !found.has_value() ||
        found->first.has_value() || !found->total.has_value()) {
      return Fail(StatusOfAnswer(response_));
    }
    response_.total = found->total;
    if (expect_.total.has_value() && *expect_.total != *found->total) {
      return Fail(Status(
          Code::kCorrupt,
          fmt::format("the object changed while it was read: expected {} "
                      "bytes, found {}",
                      *expect_.total, *found->total)));
    }
    if (*found->total > request_.range->offset) {
      return Fail(Status(Code::kCorrupt,
                         fmt::format("the server refuses bytes from {} of an "
                                     "object of {} (416)",
                                     request_.range->offset, *found->total)));
    }
    return Next::kDone;
  }
  const uint64_t came = done_ - done_before_;
  if (came < plan_.bytes) {
    // If the object's length is unknown, the object ends with the body.
    const bool ends = plan_.whole && !plan_.length.has_value();
    if (ends) {
      response_.total = body_bytes_;
    } else {
      return Retry(Status(Code::kUnavailable,
                          fmt::format("the answer ends early: expected {} "
                                      "bytes, found {}",
                                      plan_.bytes, came)));
    }
  }
  const uint64_t end = request_.range->offset + done_;
  const bool at_end = response_.total.has_value() && end >= *response_.total;
  if (done_ < request_.range->length && !at_end) {
    // Fewer bytes than requested, although the object has more.
    return Retry(Status(Code::kUnavailable,
                        fmt::format("the answer is short: expected {} bytes, "
                                    "found {}",
                                    request_.range->length, done_)));
  }
  response_.bytes = done_;
  return Next::kDone;
}

Transfer::Next Transfer::Redirected(std::string_view location) {
  if (location.empty()) {
    return Fail(Status(Code::kCorrupt,
                       fmt::format("the server answers {} without saying where "
                                   "to go",
                                   response_.status)));
  }
  if (++redirects_ > kMostRedirects) {
    return Fail(Status(Code::kLimit,
                       fmt::format("the server redirects more than {} times",
                                   kMostRedirects)));
  }
  auto target = ResolveUrl(current_, location);
  if (!target.ok()) {
    return Fail(Status(Code::kUnsupported,
                       fmt::format("the server redirects to what cannot be "
                                   "followed: {}",
                                   target.status().message())));
  }
  if (current_.scheme == "https" && target->scheme == "http") {
    return Fail(Status(Code::kUnsupported,
                       "the server redirects from https to http, where "
                       "everybody may read along: expected https"));
  }
  // After leaving the origin, credentials are never sent again.
  at_origin_ = at_origin_ && target->SameOrigin(current_);
  current_ = *std::move(target);
  response_.resolved_url = current_.Text();
  return Next::kAgain;
}

}  // namespace haulway::net
