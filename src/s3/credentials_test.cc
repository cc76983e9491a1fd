// Tests the sources of credentials against scripted services.

#include "s3/credentials.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "haulway/options.h"
#include "testing/scripted_server.h"

namespace haulway::s3 {
namespace {

using test::ScriptedServer;
using test::ServedRequest;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

using Variables = std::map<std::string, std::string, std::less<>>;

Result<Credentials> Find(Variables variables, Profile profile = {},
                         S3Options options = {}) {
  CredentialChain chain(
      std::move(options), std::move(profile),
      [variables = std::move(variables)](std::string_view name) {
        const auto found = variables.find(name);
        return found == variables.end() ? std::string() : found->second;
      });
  return chain.Get();
}

std::string Base(const ScriptedServer& server) {
  return fmt::format("http://127.0.0.1:{}", server.port());
}

void Answer(ServedRequest& request, std::string_view body) {
  request.Send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}",
                           body.size(), body));
}

constexpr std::string_view kJson =
    R"({"AccessKeyId":"A","SecretAccessKey":"S","Token":"T",)"
    R"("Expiration":"2099-01-01T00:00:00Z"})";

// Writes a token file, as a platform would, and returns its path.
std::string TokenFile() {
  const std::string path = ::testing::TempDir() + "credentials_test.token";
  std::ofstream(path) << "the-token\n";
  return path;
}

void AnswerAsSts(ServedRequest& request) {
  (void)request.ReadBody();
  Answer(request,
         "<AssumeRoleWithWebIdentityResponse><Credentials><AccessKeyId>W"
         "</AccessKeyId><SecretAccessKey>S</SecretAccessKey><SessionToken>T"
         "</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>"
         "</Credentials></AssumeRoleWithWebIdentityResponse>");
}

// Rule R43 of docs/remote-checklist.md.
TEST(Credentials, OfAWebIdentityAreAskedOfSts) {
  ScriptedServer server(AnswerAsSts);
  const auto found = Find({{"AWS_WEB_IDENTITY_TOKEN_FILE", TokenFile()},
                           {"AWS_ROLE_ARN", "arn:role"},
                           {"AWS_ENDPOINT_URL_STS", Base(server)}});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->access_key, "W");
  EXPECT_EQ(found->session_token, "T");
  EXPECT_TRUE(found->expires.has_value());
  EXPECT_THAT(server.requests(), ElementsAre(StartsWith("POST / ")));
}

TEST(Credentials, OfAProfileThatWasNamedGoBeforeAWebIdentity) {
  ScriptedServer server(AnswerAsSts);
  const Variables variables{{"AWS_WEB_IDENTITY_TOKEN_FILE", TokenFile()},
                            {"AWS_ROLE_ARN", "arn:role"},
                            {"AWS_ENDPOINT_URL_STS", Base(server)}};
  Profile profile;
  profile.name = "p";
  profile.credentials = {{"aws_access_key_id", "P"},
                         {"aws_secret_access_key", "S"}};
  S3Options options;
  options.profile = "p";
  EXPECT_EQ(Find(variables, profile, options)->access_key, "P");
  EXPECT_EQ(Find(variables, profile)->access_key, "W");
}

// Rule R42 of docs/remote-checklist.md.
TEST(Credentials, OfAContainerAreAskedWithItsToken) {
  ScriptedServer server([](ServedRequest& request) { Answer(request, kJson); });
  const auto found =
      Find({{"AWS_CONTAINER_CREDENTIALS_FULL_URI", Base(server) + "/c"},
            {"AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", TokenFile()}});
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->access_key, "A");
  EXPECT_EQ(found->session_token, "T");
  EXPECT_THAT(server.requests(),
              ElementsAre(AllOf(StartsWith("GET /c "),
                                HasSubstr("Authorization: the-token\r\n"))));
}

// Rule R42 of docs/remote-checklist.md.
TEST(Credentials, OfAnInstanceAreThoseOfItsRole) {
  ScriptedServer server([](ServedRequest& request) {
    const std::string target = request.target();
    if (target == "/latest/api/token") return Answer(request, "session");
    Answer(request, target.ends_with('/') ? "role\n" : kJson);
  });
  const Variables variables{
      {"AWS_EC2_METADATA_SERVICE_ENDPOINT", Base(server) + "/"}};
  const auto found = Find(variables);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->access_key, "A");
  const std::string roles = "GET /latest/meta-data/iam/security-credentials/";
  const auto asks = [&](const std::string& name) {
    return AllOf(StartsWith(roles + name + " "),
                 HasSubstr("x-aws-ec2-metadata-token: session\r\n"));
  };
  EXPECT_THAT(
      server.requests(),
      ElementsAre(StartsWith("PUT /latest/api/token"), asks(""), asks("role")));
}

Profile ByProcess(std::string command) {
  Profile profile;
  profile.name = "p";
  profile.config = {{"credential_process", std::move(command)}};
  return profile;
}

Result<Credentials> FindByProcess(std::string command) {
  S3Options options;
  options.profile = "p";
  return Find({}, ByProcess(std::move(command)), options);
}

std::string Printed(std::string_view expiration) {
  return fmt::format(
      R"(echo '{{"Version":1,"AccessKeyId":"A","SecretAccessKey":"S",)"
      R"("SessionToken":"T","Expiration":"{}"}}')",
      expiration);
}

TEST(Credentials, OfAProcessExpireAtTheTimeInItsZone) {
  for (const auto& [text, seconds] : std::map<std::string, int64_t>{
           {"2099-01-01T00:00:00Z", 4070908800},
           {"2099-01-01T00:00:00UTC", 4070908800},
           {"2099-01-01T00:00:00.25Z", 4070908800},
           {"2099-01-01T02:00:00+02:00", 4070908800},
           {"2098-12-31T16:30:00.5-07:30", 4070908800}}) {
    const auto found = FindByProcess(Printed(text));
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->expires, seconds) << text;
  }
}

TEST(Credentials, OfAProcessThatPrintsWithoutEndAreRefused) {
  const auto found = FindByProcess("cat /dev/zero");
  EXPECT_EQ(found.status().code(), Code::kPermissionDenied);
  EXPECT_THAT(std::string(found.status().message()), HasSubstr("1 MiB"));
}

TEST(Credentials, OfAProcessCanBeCancelledAfterItsOutput) {
  std::atomic<bool> stop{false};
  const std::jthread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    stop = true;
  });
  const CancelScope scope(&stop);
  const auto found = FindByProcess(Printed("") + "; exec >&-; sleep 60");
  EXPECT_EQ(found.status().code(), Code::kCancelled);
}

}  // namespace
}  // namespace haulway::s3
