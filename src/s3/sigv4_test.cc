#include "s3/sigv4.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/ascii.h"

namespace haulway::s3 {
namespace {

using ::testing::Contains;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr int64_t kTime = 1795348800;  // 2026-11-22 12:00:00 UTC.

SigningKey Key() {
  return {.access_key = "AKIDEXAMPLE",
          .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"};
}

// A request and its signature by AWS's own library.
struct Vector {
  const char* name;
  RequestToSign request;
  std::string region;
  std::string token;
  std::string signature;
};

const std::string kEmpty(kEmptyPayload);
const std::string kUnsigned(kUnsignedPayload);
const char kOddPath[] = "/b/a b+c=d:e@f,(g)*h~i%j//k/./\xC3\xA9";

class SigV4Vectors : public ::testing::TestWithParam<Vector> {};

// Rule R35 of docs/remote-checklist.md.
TEST_P(SigV4Vectors, AreSignedAsBotocoreDoes) {
  SigningKey key = Key();
  key.region = GetParam().region;
  key.session_token = GetParam().token;
  EXPECT_THAT(SignHeaders(GetParam().request, key, kTime),
              Contains(Pair("Authorization",
                            EndsWith(", Signature=" + GetParam().signature))));
}

INSTANTIATE_TEST_SUITE_P(
    Spec, SigV4Vectors,
    ::testing::Values(
        Vector{"RangedGet",
               {.host = "b.s3.us-east-1.amazonaws.com",
                .path = "/m/model.safetensors",
                .headers = {{"Range", "bytes=0-7"}},
                .payload = kUnsigned},
               "us-east-1",
               "",
               "38f20f1744fd0aea54d6b5e07864aed735442840767b97b2b94d068ccd2e5a2"
               "6"},
        Vector{"OddPath",
               {.host = "s3.example", .path = kOddPath, .payload = kEmpty},
               "us-east-1",
               "",
               "f048ad676f4fc37ed9ebb05a508635ed9a09450dd2f1066636961948bd8afd2"
               "f"},
        Vector{"Token",
               {.host = "s3.example", .path = "/b/k", .payload = kUnsigned},
               "eu-west-1",
               "Fwo+/tok==",
               "5a394b60690db0288e29890b10ce6f0787cd4068ea7896892bbb24926c95cd6"
               "6"},
        Vector{"Listing",
               {.host = "s3.example",
                .path = "/b",
                .query = {{"list-type", "2"},
                          {"prefix", "a/b c+d"},
                          {"delimiter", "/"},
                          {"continuation-token",
                           "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/"
                           "wm36Hy4vbOwM="}},
                .payload = kEmpty},
               "us-east-1",
               "",
               "3b0e1b3d1884b866ce91f8fe1a1a0044e66f29dced0cf9583ebaa970676cfc1"
               "f"},
        Vector{"BeginUpload",
               {.method = "POST",
                .host = "s3.example",
                .path = "/b/k",
                .query = {{"uploads", ""}},
                .payload = kEmpty},
               "us-east-1",
               "",
               "db0daad85439568af4b4a96b4bbb41b91e53be64887b4e404b42a5131313c49"
               "4"},
        Vector{"Part",
               {.method = "PUT",
                .host = "s3.example",
                .path = "/b/k",
                .query = {{"partNumber", "10"}, {"uploadId", "a.b-c_d~e/f+g="}},
                .headers = {{"x-amz-checksum-crc64nvme", "rosUhgp5mIg="}},
                .payload = kUnsigned},
               "us-east-1",
               "",
               "232ccc9fd2c808f6cb2729a8b103dc942e27e99f46b2b39992b9710329bf141"
               "5"},
        Vector{"Metadata",
               {.method = "PUT",
                .host = "s3.example",
                .path = "/b/k",
                .headers = {{"x-amz-meta-a-b", "1"},
                            {"x-amz-meta-a", "  two   words "},
                            {"If-None-Match", "*"}},
                .payload = HexSha256("abc")},
               "us-east-1",
               "",
               "d5a78f13f59919ac10726855b60ed0b76d42528a3225bf05a16054f1a773a5b"
               "2"},
        Vector{"Port",
               {.host = "127.0.0.1:9000", .path = "/b/k", .payload = kEmpty},
               "us-east-1",
               "",
               "8d2347a85725214471c68e393b953c97572032cdc70e8409af1d57959fd6df9"
               "4"}),
    [](const auto& info) { return info.param.name; });

TEST(SigV4, WritesTheCanonicalRequestOfTheFirstVector) {
  const RequestToSign request{.host = "b.s3.us-east-1.amazonaws.com",
                              .path = "/m/model.safetensors",
                              .headers = {{"range", "bytes=0-7"},
                                          {"x-amz-content-sha256", kUnsigned},
                                          {"x-amz-date", AmzDate(kTime)}},
                              .payload = kUnsigned};
  const std::string canonical = CanonicalRequest(request);
  EXPECT_EQ(canonical,
            "GET\n/m/model.safetensors\n\n"
            "host:b.s3.us-east-1.amazonaws.com\nrange:bytes=0-7\n"
            "x-amz-content-sha256:UNSIGNED-PAYLOAD\n"
            "x-amz-date:20261122T120000Z\n\n"
            "host;range;x-amz-content-sha256;x-amz-date\nUNSIGNED-PAYLOAD");
  EXPECT_EQ(HexSha256(canonical),
            "4d12bd2e5c36a53c39b083e990f62025d7d21a199a7e9b2b21db5ea952b8b0b3");
}

TEST(SigV4, EncodesAPathOnceAndNormalisesNothing) {
  EXPECT_EQ(UriEncode(kOddPath, true),
            "/b/a%20b%2Bc%3Dd%3Ae%40f%2C%28g%29%2Ah~i%25j//k/./%C3%A9");
  EXPECT_EQ(UriEncode("a/b", false), "a%2Fb");
}

TEST(SigV4, SortsAQueryByWhatIsSent) {
  EXPECT_EQ(CanonicalQuery({{"b", "2"}, {"a", "/"}, {"b", "1"}, {"c", ""}}),
            "a=%2F&b=1&b=2&c=");
}

// Rule R38 of docs/remote-checklist.md.
TEST(SigV4, PresignsTheNinthVector) {
  const RequestToSign request{.host = "s3.example", .path = "/b/a b+c"};
  EXPECT_THAT(PresignQuery(request, Key(), kTime, 900),
              EndsWith("&X-Amz-Signature=2761ba7f6d3d3d839aff30194aef84b1335a"
                       "2990ec281f0c8ecedbb538ea801e"));
}

TEST(SigV4, PresignsTheTenthVectorWithItsToken) {
  SigningKey key = Key();
  key.session_token = "Fwo+/tok==";
  const RequestToSign request{.host = "s3.example", .path = "/b/a b+c"};
  const std::string query = PresignQuery(request, key, kTime, 900);
  EXPECT_THAT(query, EndsWith("&X-Amz-Signature=a1a527cb5b07262bcf166afc97d1b70"
                              "db49562280fc3a134f73561b27c77feae"));
  EXPECT_THAT(query, HasSubstr("X-Amz-Security-Token=Fwo%2B%2Ftok%3D%3D"));
}

TEST(SigV4, LeavesOutWhatProxiesMayChange) {
  RequestToSign request{.host = "h", .path = "/", .payload = kEmpty};
  const std::string bare = CanonicalRequest(request);
  request.headers = {{"User-Agent", "x"}, {"Expect", ""}, {"Connection", "a"}};
  EXPECT_EQ(CanonicalRequest(request), bare);
}

}  // namespace
}  // namespace haulway::s3
