// An S3Client makes signed requests to one object store. It handles the
// addresses of buckets, credentials, the server's clock, and error responses.
//
// Threads: all methods may be called from many threads at once.

#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "haulway/open.h"
#include "haulway/status.h"
#include "net/fork_mutex.h"
#include "net/http_client.h"
#include "s3/credentials.h"
#include "s3/sigv4.h"

namespace haulway::s3 {

// s3://BUCKET/KEY[?versionId=V]. The key is not URL-encoded.
struct ObjectName {
  std::string bucket;
  std::string key;
  std::string version;

  std::string Shown() const;
};
// Fails with kInvalidArgument, and with kUnsupported for access points.
Result<ObjectName> ParseObjectName(std::string_view uri);

// The address of a bucket.
struct Place {
  std::string scheme;  // "https".
  std::string host;    // With ":port" unless it is the scheme's default.
  std::string path;    // Before the key, not encoded: "", "/base/bucket".
};

class S3Client : public std::enable_shared_from_this<S3Client> {
 public:
  // Reads settings that the options leave open from the files and the
  // environment. Fails with kInvalidArgument for an invalid endpoint or
  // profile.
  static Result<std::shared_ptr<S3Client>> Make(const S3Options& options,
                                                RemoteOptions remote);

  // Makes a request for a key of a bucket, or for the bucket itself if `key` is
  // "". The request is signed again at each attempt, and adapts to the store's
  // region and clock and to renewed credentials. `payload`: hexadecimal SHA-256
  // of the body, or empty if the body is not signed.
  net::HttpRequest Request(std::string method, const std::string& bucket,
                           const std::string& key, Pairs query = {},
                           std::string payload = {});
  // Adds the customer's encryption key, if there is one.
  void AddObjectHeaders(net::HttpRequest* request) const;

  Result<net::HttpResponse> Send(const net::HttpRequest& request,
                                 const std::atomic<bool>* cancel = nullptr) {
    return http_->Send(request, cancel);
  }

  Result<std::string> Presign(const ObjectName& name, uint64_t seconds);

  const std::shared_ptr<net::HttpClient>& http() const { return http_; }
  bool is_https() const { return scheme_ == "https"; }
  // Returns whether bodies are signed. Over TLS they need not be.
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
  bool is_virtual_ = false;  // For endpoints other than AWS.
  std::string scheme_ = "https";
  std::string host_;  // Host of an endpoint other than AWS.
  std::string base_path_;

  mutable net::ForkMutex mutex_;
  std::string region_;
  bool is_region_recalled_ = false;
  int region_changes_ = 0;
  int64_t skew_ = 0;  // Seconds by which the server's clock is ahead.
  bool skew_known_ = false;
  int renewals_ = 0;
};

}  // namespace haulway::s3
