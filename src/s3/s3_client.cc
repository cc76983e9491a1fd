// Design: HttpRequest::prepare adds the parts of a request that depend on the
// time of sending (address, time, credentials), at every attempt.
// HttpRequest::judge evaluates the store's response, and asks for another
// attempt if the next signature will be right. So the code above need not
// handle regions, clocks and expiring sessions.
//
// Tried instead: libcurl's own signing, which does not sort queries and encodes
// keys differently from S3.

#include "s3/s3_client.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "net/libcurl.h"
#include "net/url.h"
#include "s3/digests.h"
#include "s3/known_regions.h"
#include "s3/sigv4.h"
#include "s3/xml.h"

namespace haulway::s3 {

namespace {

constexpr int kMostRegionChanges = 3;
constexpr int kMostRenewals = 20;
constexpr uint64_t kLongestPresign = 7 * 24 * 3600;

// Returns whether a body is an error. A store that has already sent status 200
// can report a later failure only in the body.
bool IsError(std::string_view body) {
  constexpr size_t kHead = 512;  // White space and the XML declaration.
  return body.substr(0, kHead).find("<Error>") != body.npos;
}

bool IsYes(std::string_view text) {
  return text == "1" || text == "yes" || text == "YES" || text == "true" ||
         text == "TRUE" || text == "True";
}

// Returns whether the name is valid in DNS and covered by a certificate for
// *.s3.
bool FitsHost(std::string_view bucket) {
  return bucket.size() >= 3 && bucket.size() <= 63 &&
         std::ranges::all_of(bucket, [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
         });
}

std::string HostOf(const net::Url& url) {
  const bool is_usual = url.port == (url.scheme == "https" ? 443 : 80);
  return is_usual ? url.host : fmt::format("{}:{}", url.host, url.port);
}

}  // namespace

std::string ObjectName::Shown() const {
  return fmt::format("s3://{}/{}", Escape(bucket), Escape(key));
}

Result<ObjectName> ParseObjectName(std::string_view uri) {
  constexpr std::string_view kScheme = "s3://";
  constexpr std::string_view kVersion = "?versionId=";
  if (LowerCase(uri.substr(0, kScheme.size())) != kScheme) {
    return Status(Code::kInvalidArgument,
                  "it is no s3 name: expected s3://BUCKET/KEY");
  }
  ObjectName name;
  std::string_view rest = uri.substr(kScheme.size());
  const size_t version = rest.rfind(kVersion);
  if (version != rest.npos) {
    name.version = rest.substr(version + kVersion.size());
    rest = rest.substr(0, version);
  }
  if (rest.starts_with("arn:")) {
    return Status(Code::kUnsupported,
                  "access points (arn:...) are not served: expected "
                  "s3://BUCKET/KEY");
  }
  const size_t slash = rest.find('/');
  name.bucket = rest.substr(0, slash);
  if (slash != rest.npos) name.key = rest.substr(slash + 1);
  const bool is_plain = std::ranges::all_of(name.bucket, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (c >= '0' && c <= '9') || c == '-' || c == '.' || c == '_';
  });
  if (name.bucket.empty() || !is_plain) {
    return Status(Code::kInvalidArgument,
                  "an s3 name has no bucket, or one with other characters than "
                  "letters, digits, '-', '.' and '_': expected "
                  "s3://BUCKET/KEY[?versionId=V]");
  }
  return name;
}

S3Client::S3Client(const S3Options& options, Profile profile,
                   Environment environment)
    : options_(options),
      profile_(profile),
      chain_(options, std::move(profile), std::move(environment)) {}

Result<std::shared_ptr<S3Client>> S3Client::Make(const S3Options& options,
                                                 RemoteOptions remote) {
  Environment environment = options.environment;
  if (!environment) {
    environment = [](std::string_view name) {
      const char* const value = ::secure_getenv(std::string(name).c_str());
      return std::string(value == nullptr ? "" : value);
    };
  }
  S3Options full = options;
  full.anonymous |= IsYes(environment("AWS_NO_SIGN_REQUEST"));
  full.requester_pays |= environment("AWS_REQUEST_PAYER") == "requester";
  HAULWAY_ASSIGN(Profile profile, LoadProfile(options.profile, environment));
  std::shared_ptr<S3Client> client(
      new S3Client(full, std::move(profile), environment));
  HAULWAY_TRY(client->SetUp(environment, std::move(remote)));
  return client;
}

Status S3Client::SetUp(const Environment& environment, RemoteOptions remote) {
  region_ = options_.region;
  for (const std::string_view name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (region_.empty()) region_ = environment(name);
  }
  if (region_.empty()) region_ = profile_.Value("region");
  if (region_.empty()) region_ = "us-east-1";

  std::string endpoint = options_.endpoint;
  if (endpoint.empty() &&
      environment("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") != "true") {
    endpoint = environment("AWS_ENDPOINT_URL_S3");
    if (endpoint.empty()) endpoint = environment("AWS_ENDPOINT_URL");
    const auto service = profile_.services.find("s3.endpoint_url");
    if (endpoint.empty() && service != profile_.services.end()) {
      endpoint = service->second;
    }
    if (endpoint.empty()) endpoint = profile_.Value("endpoint_url");
  }
  std::string addressing = options_.addressing;
  if (addressing.empty()) addressing = profile_.Value("s3.addressing_style");
  is_virtual_ = addressing == "virtual";
  if (!endpoint.empty()) HAULWAY_TRY(SetEndpoint(endpoint));

  const std::string wanted = environment("AWS_REQUEST_CHECKSUM_CALCULATION");
  has_checksums_ = options_.checksums.value_or(
      wanted == "when_supported" || (is_aws_ && wanted != "when_required"));
  if (!options_.customer_key.empty()) {
    if (options_.customer_key.size() != 32) {
      return Status(Code::kInvalidArgument,
                    fmt::format("the customer's key has a wrong length: "
                                "expected 32 bytes, found {}",
                                options_.customer_key.size()));
    }
    if (!is_https()) {
      return Status(Code::kInvalidArgument,
                    "a customer's key goes by https only");
    }
  }
  // Object stores do not accept these credentials.
  remote.headers.clear();
  remote.bearer_token.clear();
  remote.netrc.clear();
  if (remote.ca_file.empty() && remote.ca_dir.empty()) {
    remote.ca_file = environment("AWS_CA_BUNDLE");
    if (remote.ca_file.empty()) remote.ca_file = profile_.Value("ca_bundle");
  }
  chain_.SetRemote(remote);
  HAULWAY_ASSIGN(http_, net::HttpClient::Make(std::move(remote)));
  return Status();
}

Status S3Client::SetEndpoint(std::string_view endpoint) {
  auto parsed = net::ParseUrl(endpoint);
  if (!parsed.ok() || !parsed->query.empty() || !parsed->user.empty()) {
    return Status(Code::kInvalidArgument,
                  "the endpoint of S3 is no URL: expected "
                  "https://HOST[:PORT][/PATH]");
  }
  is_aws_ = false;
  scheme_ = parsed->scheme;
  host_ = HostOf(*parsed);
  base_path_ = parsed->path;
  while (base_path_.ends_with('/')) base_path_.pop_back();
  return Status();
}

Place S3Client::PlaceOf(const std::string& bucket) const {
  if (!is_aws_) {
    if (is_virtual_ && FitsHost(bucket)) {
      return {scheme_, bucket + "." + host_, base_path_};
    }
    return {scheme_, host_, base_path_ + "/" + bucket};
  }
  const std::string region = this->region();
  std::string host = region == "us-east-1" ? "s3.amazonaws.com"
                                           : "s3." + region + ".amazonaws.com";
  if (region.starts_with("cn-")) host += ".cn";
  const bool is_path = options_.addressing == "path" ||
                       profile_.Value("s3.addressing_style") == "path" ||
                       !FitsHost(bucket);
  if (is_path) return {"https", host, "/" + bucket};
  return {"https", bucket + "." + host, ""};
}

std::string S3Client::region() const {
  const std::lock_guard lock(mutex_);
  return region_;
}

// Sets the region to the one that an earlier client was redirected to.
void S3Client::RecallRegion(const std::string& bucket) {
  const std::lock_guard lock(mutex_);
  if (std::exchange(is_region_recalled_, true)) return;
  const auto known =
      KnownRegions::OfThisProcess().Find(is_aws_ ? "" : host_, bucket);
  if (known.has_value()) region_ = *known;
}

net::HttpRequest S3Client::Request(std::string method,
                                   const std::string& bucket,
                                   const std::string& key, Pairs query,
                                   std::string payload) {
  net::HttpRequest request;
  RecallRegion(bucket);
  const Place place = PlaceOf(bucket);
  request.method = std::move(method);
  request.url = fmt::format("{}://{}{}", place.scheme, place.host,
                            UriEncode(place.path + "/" + key, true));
  if (!query.empty()) request.url += "?" + CanonicalQuery(query);
  if (payload.empty()) payload = kUnsignedPayload;
  if (options_.requester_pays) {
    request.headers.push_back({"x-amz-request-payer", "requester"});
  }
  // Requests keep the client alive.
  const std::shared_ptr<S3Client> self = shared_from_this();
  const auto used = std::make_shared<std::pair<net::ForkMutex, Credentials>>();
  request.prepare = [self, bucket, key, query = std::move(query),
                     payload = std::move(payload),
                     used](net::HttpAttempt* attempt) {
    Credentials credentials;
    HAULWAY_TRY(self->Sign(bucket, key, query, payload, attempt, &credentials));
    const std::lock_guard lock(used->first);
    used->second = std::move(credentials);
    return Status();
  };
  request.judge = [self, bucket, used](const net::HttpResponse& response) {
    if (response.status < 300 && !IsError(response.body)) {
      return net::Verdict::kUsual;
    }
    Credentials credentials;
    {
      const std::lock_guard lock(used->first);
      credentials = used->second;
    }
    return self->Judge(response, bucket, credentials);
  };
  return request;
}

void S3Client::AddObjectHeaders(net::HttpRequest* request) const {
  if (options_.customer_key.empty()) return;
  constexpr std::string_view kPrefix = "x-amz-server-side-encryption-customer-";
  request->headers.push_back({std::string(kPrefix) + "algorithm", "AES256"});
  request->headers.push_back(
      {std::string(kPrefix) + "key", Base64(options_.customer_key)});
  request->headers.push_back(
      {std::string(kPrefix) + "key-MD5", Base64(Md5(options_.customer_key))});
}

Status S3Client::Sign(const std::string& bucket, const std::string& key,
                      const Pairs& query, const std::string& payload,
                      net::HttpAttempt* attempt, Credentials* used) {
  HAULWAY_ASSIGN(*used, chain_.Get());
  const Place place = PlaceOf(bucket);
  RequestToSign to_sign{.method = attempt->method,
                        .host = place.host,
                        .path = place.path + "/" + key,
                        .query = query,
                        .headers = {},
                        .payload = payload};
  attempt->url = fmt::format("{}://{}{}", place.scheme, place.host,
                             UriEncode(to_sign.path, true));
  if (!query.empty()) attempt->url += "?" + CanonicalQuery(query);
  if (used->access_key.empty()) return Status();
  for (const HttpHeader& header : attempt->headers) {
    to_sign.headers.emplace_back(header.name, header.value);
  }
  SigningKey signing{
      used->access_key, used->secret_key, used->session_token, {}};
  int64_t time = UnixTime();
  {
    const std::lock_guard lock(mutex_);
    signing.region = region_;
    time += skew_;
  }
  attempt->headers.clear();
  for (auto& [name, value] : SignHeaders(to_sign, signing, time)) {
    attempt->headers.push_back({name, value});
  }
  return Status();
}

net::Verdict S3Client::Judge(const net::HttpResponse& response,
                             const std::string& bucket,
                             const Credentials& used) {
  const std::string code = XmlText(response.body, "Code");
  std::string region(response.Header("x-amz-bucket-region"));
  if (region.empty() && code == "AuthorizationHeaderMalformed") {
    region = XmlText(response.body, "Region");
  }
  if (code == "ExpiredToken" || code == "ExpiredTokenException" ||
      code == "InvalidToken") {
    const bool is_new = chain_.Renew(used);
    const std::lock_guard lock(mutex_);
    return is_new && ++renewals_ <= kMostRenewals ? net::Verdict::kAgain
                                                  : net::Verdict::kDenied;
  }
  const std::lock_guard lock(mutex_);
  const bool may_be_region = response.status == 301 || response.status == 307 ||
                             response.status == 308 || response.status == 400 ||
                             response.status == 403;
  const bool is_name = std::ranges::all_of(region, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-';
  });
  if (may_be_region && !region.empty() && is_name && region != region_ &&
      ++region_changes_ <= kMostRegionChanges) {
    region_ = region;
    KnownRegions::OfThisProcess().Note(is_aws_ ? "" : host_, bucket, region);
    return net::Verdict::kAgain;
  }
  if (code == "RequestTimeTooSkewed" && !skew_known_) {
    if (const auto theirs = net::ParseHttpDate(response.Header("date"))) {
      skew_ = static_cast<int64_t>(*theirs) - UnixTime();
      skew_known_ = true;
      return net::Verdict::kAgain;
    }
  }
  if (code == "SlowDown" || code == "RequestTimeout" ||
      code == "InternalError" || code.starts_with("Throttling")) {
    return net::Verdict::kRetry;
  }
  return net::Verdict::kUsual;
}

Result<std::string> S3Client::Presign(const ObjectName& name,
                                      uint64_t seconds) {
  if (seconds == 0 || seconds > kLongestPresign) {
    return Status(Code::kInvalidArgument,
                  fmt::format("a presigned URL cannot last {} s: expected 1 to "
                              "{}",
                              seconds, kLongestPresign));
  }
  HAULWAY_ASSIGN(const Credentials used, chain_.Get());
  const Place place = PlaceOf(name.bucket);
  RequestToSign request{.method = "GET",
                        .host = place.host,
                        .path = place.path + "/" + name.key,
                        .query = {},
                        .headers = {}};
  if (!name.version.empty()) request.query = {{"versionId", name.version}};
  std::string url = fmt::format("{}://{}{}", place.scheme, place.host,
                                UriEncode(request.path, true));
  if (used.access_key.empty()) {
    if (!request.query.empty()) url += "?" + CanonicalQuery(request.query);
    return url;
  }
  const SigningKey key{used.access_key, used.secret_key, used.session_token,
                       region()};
  return url + "?" +
         PresignQuery(request, key, UnixTime(), static_cast<int64_t>(seconds));
}

}  // namespace haulway::s3

namespace haulway {

Result<std::string> PresignS3(std::string_view uri, uint64_t seconds,
                              const S3Options& options) {
  return OrNoMemory([&]() -> Result<std::string> {
    HAULWAY_ASSIGN(const s3::ObjectName name, s3::ParseObjectName(uri));
    HAULWAY_ASSIGN(const auto client,
                   s3::S3Client::Make(options, RemoteOptionsFromEnvironment()));
    return client->Presign(name, seconds);
  });
}

}  // namespace haulway
