// Compares signatures of random requests with those that botocore made
// (tools/make_sigv4_cases.py). HAULWAY_SIGV4_CASES names another file of cases.

#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <sstream>

#include "s3/sigv4.h"
#include "testing/shorthands.h"

namespace haulway::s3 {
namespace {

constexpr int64_t kSigned = 1795348800;  // 2026-11-22 12:00:00 UTC.

// Rule R36 of docs/remote-checklist.md.
TEST(SigV4Cases, AreSignedAsBotocoreDoes) {
  const char* const other = ::secure_getenv("HAULWAY_SIGV4_CASES");
  std::ifstream file(other != nullptr ? other
                                      : HAULWAY_TESTDATA "/sigv4_cases.txt");
  std::string line;
  int count = 0;
  int different = 0;
  while (std::getline(file, line)) {
    if (line.starts_with('#')) continue;
    std::vector<std::string> fields;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      fields.push_back(word == "-" ? "" : test::FromHex(word));
    }
    ASSERT_GE(fields.size(), 8U);
    RequestToSign request{.method = fields[0],
                          .host = fields[1],
                          .path = fields[2],
                          .query = {},
                          .headers = {},
                          .payload = fields[3]};
    size_t at = 8;
    for (int pairs = std::stoi(fields[7]); pairs > 0; --pairs, at += 2) {
      request.query.emplace_back(fields.at(at), fields.at(at + 1));
    }
    for (; at + 1 < fields.size(); at += 2) {
      request.headers.emplace_back(fields[at], fields[at + 1]);
    }
    const SigningKey key{
        .access_key = "AKIDEXAMPLE",
        .secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
        .session_token = fields[5],
        .region = fields[4]};
    const std::string signed_by =
        SignHeaders(request, key, kSigned).back().second;
    ++count;
    if (signed_by.ends_with("Signature=" + fields[6])) continue;
    ++different;
    EXPECT_LT(different, 5) << request.path;
  }
  EXPECT_EQ(different, 0);
  EXPECT_GE(count, 300);
}

}  // namespace
}  // namespace haulway::s3
