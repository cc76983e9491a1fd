#include "s3/digests.h"

#include <gtest/gtest.h>

namespace haulway::s3 {
namespace {

std::span<const std::byte> Digits() {
  static constexpr std::string_view kDigits = "123456789";
  return std::as_bytes(std::span(kDigits));
}

net::HttpResponse With(std::string name, std::string value) {
  net::HttpResponse response;
  response.headers.push_back({std::move(name), std::move(value)});
  return response;
}

TEST(Digests, AreThoseOfS3) {
  const std::pair<const char*, const char*> known[] = {
      {"x-amz-checksum-crc32", "y/Q5Jg=="},
      {"x-amz-checksum-crc32c", "4waSgw=="},
      {"x-amz-checksum-crc64nvme", "rosUhgp5mIg="},
      {"x-amz-checksum-sha1", "98O8HYCOBHMq32eZZczDTKeuNEE="},
      {"x-amz-checksum-sha256", "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU="},
  };
  for (const auto& [name, value] : known) {
    EXPECT_TRUE(CheckChecksums(With(name, value), Digits()).ok()) << name;
    const Status wrong = CheckChecksums(With(name, "AAAA"), Digits());
    EXPECT_EQ(wrong.code(), Code::kMismatch) << name;
    // Of parts.
    EXPECT_TRUE(CheckChecksums(With(name, "AAAA-2"), Digits()).ok());
  }
}

TEST(Digests, OfWhatWasTaken) {
  const std::string md5 = "\"25f9e794323b453885f5181f1b624d0b\"";
  const std::string other = "\"25f9e794323b453885f5181f1b624d0c\"";
  EXPECT_TRUE(CheckTaken(With("etag", md5), "b", Digits()).ok());
  EXPECT_EQ(CheckTaken(With("etag", other), "b", Digits()).code(),
            Code::kMismatch);
  EXPECT_TRUE(CheckTaken(With("etag", other), "b--x-s3", Digits()).ok());
  EXPECT_TRUE(CheckTaken(With("etag", "\"1\""), "b", Digits()).ok());
  net::HttpResponse encrypted = With("etag", other);
  encrypted.headers.push_back({"x-amz-server-side-encryption", "aws:kms"});
  EXPECT_TRUE(CheckTaken(encrypted, "b", Digits()).ok());
}

}  // namespace
}  // namespace haulway::s3
