// An S3Client makes signed requests of one object store: it knows where
// buckets are, who asks, what time the server has, and what its refusals mean.
//
// Threads: all of it may be called from many threads at once.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "haulway/open.h"
#include "haulway/status.h"
#include "net/http_client.h"
#include "s3/credentials.h"
#include "s3/sigv4.h"

namespace haulway::s3 {

// s3://BUCKET/KEY[?versionId=V]; the key as it is typed.
struct ObjectName {
  std::string bucket;
  std::string key;
  std::string version;

  std::string Shown() const;
};
// Fails with kInvalidArgument, and kUnsupported for access points.
Result<ObjectName> ParseObjectName(std::string_view uri);

// Where a bucket is reached.
struct Place {
  std::string scheme;  // "https".
  std::string host;    // With ":port" where that is not the scheme's own.
  std::string path;    // Before the key, not encoded: "", "/base/bucket".
};

class S3Client : public std::enable_shared_from_this<S3Client> {
 public:
  // Reads the files and the environment that the options leave open. Fails
  // with kInvalidArgument for endpoints and profiles that are none.
  static Result<std::shared_ptr<S3Client>> Make(const S3Options& options,
                                                RemoteOptions remote);

  // A request for a key of a bucket; "" is the bucket itself. It signs itself
  // anew at each attempt, and follows the store to its region, clock and
  // fresh credentials. `payload` is the hexadecimal SHA-256 of the body, or
  // empty where that is not to be signed.
  net::HttpRequest Request(std::string method, const std::string& bucket,
                           const std::string& key, Pairs query = {},
                           std::string payload = {});
  // Adds the key of the customer's that an object is encrypted with, if any.
  void AddObjectHeaders(net::HttpRequest* request) const;

  Result<net::HttpResponse> Send(const net::HttpRequest& request,
                                 const std::atomic<bool>* cancel = nullptr) {
    return http_->Send(request, cancel);
  }

  Result<std::string> Presign(const ObjectName& name, uint64_t seconds);

  const std::shared_ptr<net::HttpClient>& http() const { return http_; }
  bool is_https() const { return scheme_ == "https"; }
  // Over TLS bodies need no signature of their own.
  bool signs_bodies() const {
    return !is_https() &&
           profile_.Value("s3.payload_signing_enabled") != "false";
  }
  bool has_checksums() const { return has_checksums_; }
  Place PlaceOf(const std::string& bucket) const;

 private:
  S3Client(const S3Options& options, Profile profile, Environment environment);
  Status SetUp(const Environment& environment, RemoteOptions remote);
  Status SetEndpoint(std::string_view endpoint);
  Status Sign(const std::string& bucket, const std::string& key,
              const Pairs& query, const std::string& payload,
              net::HttpAttempt* attempt, Credentials* used);
  net::Verdict Judge(const net::HttpResponse& response,
                     const std::string& bucket, const Credentials& used);
  void RecallRegion(const std::string& bucket);
  std::string region() const;

  const S3Options options_;
  const Profile profile_;
  std::shared_ptr<net::HttpClient> http_;
  CredentialChain chain_;
  bool is_aws_ = true;
  bool has_checksums_ = false;
  bool is_virtual_ = false;  // Where the endpoint is not AWS's.
  std::string scheme_ = "https";
  std::string host_;  // Host of an endpoint that is not AWS's.
  std::string base_path_;

  mutable std::mutex mutex_;
  std::string region_;
  bool is_region_recalled_ = false;
  int region_changes_ = 0;
  int64_t skew_ = 0;  // Seconds that the server is ahead.
  bool skew_known_ = false;
  int renewals_ = 0;
};

}  // namespace haulway::s3
