// AWS Signature Version 4, as used by S3: a pure function of the request, the
// credentials and the time. Tests can inspect the intermediate strings.
//
// Differences between S3 and other services: a path is encoded once and never
// normalised, and the digest of the payload is also sent as a header.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace haulway::s3 {

// Names with values, in the given order. Not encoded yet in queries.
using Pairs = std::vector<std::pair<std::string, std::string>>;

// Credentials and region for a signature. Empty strings are absent values.
struct SigningKey {
  std::string access_key;
  std::string secret_key;
  std::string session_token{};
  std::string region = "us-east-1";
};

// Returns the seconds since 1970.
int64_t UnixTime();

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";
// The hexadecimal SHA-256 of the empty string.
inline constexpr std::string_view kEmptyPayload =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct RequestToSign {
  std::string method = "GET";
  std::string host;  // With ":port" unless it is the scheme's default.
  std::string path;  // From the first slash, not encoded.
  Pairs query{};
  // In addition to Host. Hop-by-hop headers are not signed.
  Pairs headers{};
  // Value of x-amz-content-sha256: a digest, or kUnsignedPayload.
  std::string payload{kUnsignedPayload};
};

// Returns a query such as "a=1&b=": encoded, then sorted.
std::string CanonicalQuery(const Pairs& query);
// Formats seconds since 1970 as "20261122T120000Z".
std::string AmzDate(int64_t time);
std::string HexSha256(std::string_view bytes);

// Returns the string whose digest is signed. Requires: `request.headers` holds
// all headers to sign.
std::string CanonicalRequest(const RequestToSign& request);
// Returns the signature of a canonical request.
std::string Signature(std::string_view canonical_request, const SigningKey& key,
                      int64_t time);

// Returns the headers to send besides Host: those of the request, those that S3
// requires, and Authorization.
Pairs SignHeaders(const RequestToSign& request, const SigningKey& key,
                  int64_t time);
// Returns the encoded query of a presigned URL, which is valid until `expires`
// seconds after `time`. The payload is not signed. The request's headers must
// be sent with it.
std::string PresignQuery(const RequestToSign& request, const SigningKey& key,
                         int64_t time, int64_t expires);

}  // namespace haulway::s3
