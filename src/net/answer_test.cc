#include "net/answer.h"

#include <gtest/gtest.h>

#include "net/url.h"

namespace haulway::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(Answer, ReadsContentRanges) {
  const auto whole = ParseContentRange("bytes 0-9/10");
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(whole->first, 0U);
  EXPECT_EQ(whole->last, 9U);
  EXPECT_EQ(whole->total, 10U);
  EXPECT_FALSE(ParseContentRange("bytes 3-4/*")->total.has_value());
  EXPECT_FALSE(ParseContentRange("bytes */10")->first.has_value());
  for (const char* wrong :
       {"", "bytes", "bytes ", "items 0-1/2", "bytes 0-9", "bytes 0-9/",
        "bytes 9-0/10", "bytes 0-10/10", "bytes */*", "bytes -1-2/3",
        "bytes 0-1/2x", "bytes 0x1-2/3", "bytes 0-0/0",
        "bytes 0-18446744073709551615/*",
        "bytes 0-99999999999999999999/999999999999999999999"}) {
    EXPECT_FALSE(ParseContentRange(wrong).has_value()) << wrong;
  }
}

TEST(Answer, ReadsWhenToComeAgain) {
  const auto now = std::chrono::system_clock::from_time_t(784111777);
  EXPECT_EQ(ParseRetryAfter("120", now), seconds(120));
  EXPECT_EQ(ParseRetryAfter(" 0 ", now), seconds(0));
  EXPECT_EQ(ParseRetryAfter("Sun, 06 Nov 1994 08:49:47 GMT", now), seconds(10));
  EXPECT_EQ(ParseRetryAfter("Sun, 06 Nov 1994 08:00:00 GMT", now), seconds(0));
  EXPECT_LE(*ParseRetryAfter("99999999999999999999999", now),
            std::chrono::hours(366 * 24));
  EXPECT_EQ(ParseRetryAfter("Fri, 31 Dec 9999 23:59:59 GMT", now),
            std::chrono::hours(365 * 24));
  EXPECT_FALSE(
      ParseRetryAfter("Sat, 01 Jan 10000 00:00:00 GMT", now).has_value());
  EXPECT_FALSE(ParseRetryAfter("", now).has_value());
  EXPECT_FALSE(ParseRetryAfter("soon", now).has_value());
}

TEST(Url, IsTakenApartAndShownWithoutSecrets) {
  const auto url = ParseUrl(
      "HTTPS://us%40er:pa%3Ass@Host.Example:443/a b/ä"
      "?X-Amz-Signature=s&x=%2F#part");
  ASSERT_TRUE(url.ok()) << url.status().message();
  EXPECT_EQ(url->Text(),
            "https://host.example/a%20b/%C3%A4?X-Amz-Signature=s&x=%2F");
  EXPECT_EQ(url->Shown(), "https://host.example/a%20b/%C3%A4?...");
  EXPECT_EQ(url->user, "us@er");
  EXPECT_EQ(url->password, "pa:ss");
  EXPECT_EQ(ParseUrl("http://h:8080/a//../b")->Text(), "http://h:8080/a//../b");
  for (const char* wrong : {"", "ftp://h/x", "http://", "file:///x", "h/x",
                            "http://h:99999/", "http://[::1/"}) {
    const auto none = ParseUrl(wrong);
    EXPECT_EQ(none.status().code(), Code::kInvalidArgument) << wrong;
  }
  EXPECT_EQ(ParseUrl("http://user:secret@/x").status().message().find("secret"),
            std::string_view::npos);
}

TEST(Url, ResolvesWhereARedirectLeads) {
  const auto base = *ParseUrl("https://h/a/b?q=1");
  EXPECT_EQ(ResolveUrl(base, "c")->Text(), "https://h/a/c");
  EXPECT_EQ(ResolveUrl(base, "/c?d")->Text(), "https://h/c?d");
  EXPECT_EQ(ResolveUrl(base, "//other/c")->Text(), "https://other/c");
  EXPECT_EQ(ResolveUrl(base, "http://x:81/")->Text(), "http://x:81/");
  EXPECT_FALSE(ResolveUrl(base, "file:///etc/passwd").ok());
}

TEST(Url, KnowsWhenAPresignedOneEnds) {
  EXPECT_EQ(ExpiryOf(*ParseUrl("http://h/?X-Amz-Date=20261122T120000Z&"
                               "X-Amz-Expires=900"))
                ->text,
            "2026-11-22T12:15:00Z");
  const auto epoch = ExpiryOf(*ParseUrl("http://h/?Expires=0"));
  EXPECT_EQ(epoch->text, "1970-01-01T00:00:00Z");
  EXPECT_EQ(epoch->time, 0);
  EXPECT_FALSE(ExpiryOf(*ParseUrl("http://h/?Expires=soon")).has_value());
  EXPECT_FALSE(ExpiryOf(*ParseUrl("http://h/")).has_value());
}

}  // namespace
}  // namespace haulway::net
