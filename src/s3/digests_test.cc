#include "s3/digests.h"

#include <fmt/format.h>
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

Status Taken(const net::HttpResponse& response, std::string_view bucket,
             std::string_view crc32 = "") {
  return CheckTaken(response, HasMd5(response, bucket), crc32,
                    [](const TakePiece& take) {
                      take(Digits().first(4));
                      take(Digits().subspan(4));
                      return Status();
                    });
}

constexpr std::string_view kMd5 = "\"25f9e794323b453885f5181f1b624d0b\"";
constexpr std::string_view kOther = "\"25f9e794323b453885f5181f1b624d0c\"";

TEST(Digests, OfWhatWasTaken) {
  EXPECT_TRUE(Taken(With("etag", std::string(kMd5)), "b").ok());
  const auto other = With("etag", std::string(kOther));
  EXPECT_EQ(Taken(other, "b").code(), Code::kMismatch);
  EXPECT_TRUE(Taken(other, "b--x-s3").ok());
  EXPECT_TRUE(Taken(With("etag", "\"1\""), "b").ok());
  for (const char* name : {"x-amz-server-side-encryption",
                           "x-amz-server-side-encryption-customer-algorithm"}) {
    net::HttpResponse encrypted = other;
    encrypted.headers.push_back({name, "aws:kms"});
    EXPECT_TRUE(Taken(encrypted, "b").ok());
  }
  EXPECT_EQ(Taken(With("x-amz-checksum-sha256", "AAAA"), "b").code(),
            Code::kMismatch);
  EXPECT_EQ(Taken(With("x-amz-checksum-crc32", "AAAA"), "b", "y/Q5Jg==").code(),
            Code::kMismatch);
}

TEST(Digests, AConfirmedChecksumIsProof) {
  const auto confirmed = With("x-amz-checksum-crc32", "y/Q5Jg==");
  const Status status =
      CheckTaken(confirmed, true, "y/Q5Jg==", [](const TakePiece&) {
        return Status(Code::kInternal, "nothing need be read again");
      });
  EXPECT_TRUE(status.ok());
}

// Checks the end of an upload of the digits in parts of four and five bytes.
Status Joined(std::string_view etag, std::string_view checksum = "",
              std::string_view type = "", std::string_view second = "") {
  const std::string one = "\"81dc9bdb52d04dc20036dbd8313ed055\"";
  std::string other = "\"099ebea48ea9666a7da2177267983138\"";
  if (!second.empty()) other = second;
  const TakenPart parts[] = {
      {one, Crc32Text(0x9be3e0a3), 0x9be3e0a3, 4},
      {other, Crc32Text(0x131da070), 0x131da070, 5},
  };
  net::HttpResponse response;
  response.body = fmt::format("<ETag>{}</ETag>", etag);
  if (!checksum.empty()) {
    response.body += fmt::format("<ChecksumCRC32>{}</ChecksumCRC32>", checksum);
  }
  if (!type.empty()) {
    response.body += fmt::format("<ChecksumType>{}</ChecksumType>", type);
  }
  return CheckJoined(response, true, parts);
}

TEST(Digests, OfPartsTogether) {
  constexpr std::string_view kRight = "d8399932ce6023ac3365f50fbbcde132-2";
  EXPECT_TRUE(Joined(kRight).ok());
  EXPECT_TRUE(Joined(fmt::format("&quot;{}&quot;", kRight)).ok());
  EXPECT_EQ(Joined("d8399932ce6023ac3365f50fbbcde133-2").code(),
            Code::kMismatch);
  EXPECT_EQ(Joined("d8399932ce6023ac3365f50fbbcde132-3").code(),
            Code::kMismatch);
  // No digest that all stores compute alike.
  EXPECT_TRUE(Joined("1").ok());
  EXPECT_TRUE(Joined("D8399932CE6023AC3365F50FBBCDE133-2").ok());
  EXPECT_TRUE(
      Joined("d8399932ce6023ac3365f50fbbcde133-2", "", "", "\"2\"").ok());

  EXPECT_TRUE(Joined("1", "y/Q5Jg==").ok());
  EXPECT_TRUE(Joined("1", "rBMwBw==-2").ok());
  EXPECT_TRUE(Joined("1", "rBMwBw==", "COMPOSITE").ok());
  EXPECT_EQ(Joined("1", "AAAAAA==").code(), Code::kMismatch);
  EXPECT_EQ(Joined("1", "AAAAAA==-2").code(), Code::kMismatch);
  EXPECT_EQ(Joined("1", "y/Q5Jg==-2").code(), Code::kMismatch);
}

}  // namespace
}  // namespace haulway::s3
