// AWS Signature Version 4, as S3 has it: a pure function of the request, the
// credentials and the time, whose intermediate strings tests can look at.
//
// What S3 does otherwise than the other services: a path is encoded once and
// never normalised, and the digest of the payload is a header of its own.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace haulway::s3 {

// Names with values, in the order given; of queries not yet encoded.
using Pairs = std::vector<std::pair<std::string, std::string>>;

// What a request is signed with. Empty strings are values that are not there.
struct SigningKey {
  std::string access_key;
  std::string secret_key;
  std::string session_token{};
  std::string region = "us-east-1";
};

inline constexpr std::string_view kUnsignedPayload = "UNSIGNED-PAYLOAD";
// The hexadecimal SHA-256 of no bytes.
inline constexpr std::string_view kEmptyPayload =
    "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

struct RequestToSign {
  std::string method = "GET";
  std::string host;  // With ":port" where that is not the scheme's own.
  std::string path;  // From the first slash on, not encoded.
  Pairs query{};
  // Beside Host; those that travel hop by hop are left out of the signature.
  Pairs headers{};
  // What x-amz-content-sha256 says: a digest, or kUnsignedPayload.
  std::string payload{kUnsignedPayload};
};

// "a=1&b=": encoded, and sorted by what it is then.
std::string CanonicalQuery(const Pairs& query);
// "20261122T120000Z", of seconds since 1970.
std::string AmzDate(int64_t time);
std::string HexSha256(std::string_view bytes);

// The string whose digest is signed. `request.headers` must hold all that is
// to be signed.
std::string CanonicalRequest(const RequestToSign& request);
// The signature itself, of a canonical request.
std::string Signature(std::string_view canonical_request, const SigningKey& key,
                      int64_t time);

// The headers to send beside Host: those of the request, the ones that S3 asks
// for, and Authorization.
Pairs SignHeaders(const RequestToSign& request, const SigningKey& key,
                  int64_t time);
// The query to send, encoded, for whoever has the URL until `expires` seconds
// after `time`; the payload is not signed. Headers of the request must be sent
// with it.
std::string PresignQuery(const RequestToSign& request, const SigningKey& key,
                         int64_t time, int64_t expires);

}  // namespace haulway::s3
