#include "net/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/url.h"

namespace haulway::net {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

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

HttpResponse Response(int status, std::vector<HttpHeader> headers) {
  HttpResponse response;
  response.status = status;
  response.headers = std::move(headers);
  return response;
}

// What PlanBody() says of a response to a request for bytes 0 to 9.
std::string Said(const HttpResponse& response, const Validator& expect = {}) {
  const auto plan = PlanBody(response, ByteRange{0, 10}, expect);
  if (!plan.ok()) return std::string(plan.status().message());
  return plan->whole ? "whole" : "part";
}

TEST(Answer, IsAPartOrTheWholeOrAnError) {
  const HttpHeader part{"content-range", "bytes 0-9/100"};
  const HttpHeader ten{"content-length", "10"};
  EXPECT_EQ(Said(Response(206, {part, ten})), "part");
  EXPECT_EQ(Said(Response(206, {part})), "part");
  EXPECT_EQ(Said(Response(200, {{"content-length", "100"}})), "whole");
  EXPECT_EQ(Said(Response(200, {ten, {"content-range", "bytes 0-9/10"}})),
            "whole");
  const char* const wrong[] = {"bytes 0-9/100", "bytes 0-9/*", "bytes 1-9/10",
                               "bytes */10", "nonsense"};
  for (const char* range : wrong) {
    EXPECT_THAT(Said(Response(200, {ten, {"content-range", range}})),
                HasSubstr("contradicts itself"))
        << range;
  }
  EXPECT_THAT(Said(Response(206, {part, {"content-length", "11"}})),
              HasSubstr("contradicts itself"));
  for (const char* length : {"x", "-1", "10, 10", "1e3"}) {
    EXPECT_THAT(Said(Response(200, {{"content-length", length}})),
                HasSubstr("expected a number"))
        << length;
  }
  // Two values of one header.
  EXPECT_THAT(Said(Response(206, {part, {"content-range", "bytes 0-9/99"}})),
              HasSubstr("contradicts itself"));
  EXPECT_EQ(Said(Response(206, {part, part, ten, ten})), "part");
  for (const int status : {200, 206}) {
    EXPECT_THAT(
        Said(Response(
            status,
            {part, {"content-type", "multipart/byteranges; boundary=x"}})),
        HasSubstr("several parts"));
  }
}

TEST(Answer, SaysWhetherItShowsItsEnd) {
  const auto open_ended = [](std::vector<HttpHeader> headers,
                             bool multiplexed) {
    HttpResponse response = Response(200, std::move(headers));
    response.is_multiplexed = multiplexed;
    return PlanBody(response, std::nullopt, {})->open_ended;
  };
  EXPECT_TRUE(open_ended({}, false));
  EXPECT_FALSE(open_ended({}, true));
  EXPECT_FALSE(open_ended({{"content-length", "10"}}, false));
  EXPECT_FALSE(open_ended({{"transfer-encoding", "chunked"}}, false));
}

TEST(Answer, ShowsThatTheObjectIsTheSame) {
  const std::string monday = "Mon, 07 Nov 1994 08:49:37 GMT";
  const std::string sunday = "Sun, 06 Nov 1994 08:49:37 GMT";
  struct Case {
    Validator was;
    std::vector<HttpHeader> is;
    std::string said;
  };
  const std::string same = "part";
  const std::string changed = "the object changed";
  const std::string unproved = "does not show that the object is the same";
  const Case cases[] = {
      {{}, {}, same},
      {{"\"a\"", "", {}}, {{"etag", "\"a\""}}, same},
      {{"\"a\"", "", {}}, {{"etag", "\"b\""}}, changed},
      {{"\"a\"", "", {}}, {}, unproved},
      {{"\"a\"", monday, {}}, {{"last-modified", monday}}, unproved},
      // A strong ETag says more than the date, which mirrors may set.
      {{"\"a\"", monday, {}},
       {{"etag", "\"a\""}, {"last-modified", sunday}},
       same},
      {{"\"a\"", monday, {}}, {{"etag", "\"a\""}}, same},
      // Servers make a weak ETag strong when the object is a second old.
      {{"W/\"a\"", monday, {}},
       {{"etag", "\"a\""}, {"last-modified", monday}},
       same},
      {{"W/\"a\"", monday, {}},
       {{"etag", "W/\"a\""}, {"last-modified", sunday}},
       changed},
      {{"W/\"a\"", monday, {}}, {{"etag", "W/\"a\""}}, unproved},
      {{"", monday, {}}, {{"last-modified", monday}}, same},
      {{"", monday, {}}, {{"last-modified", sunday}}, changed},
      {{"", monday, {}}, {{"etag", "\"a\""}}, unproved},
      {{"", "", 100}, {}, same},
      {{"", "", 101}, {}, changed},
      {{"\"a\"", "", 101}, {{"etag", "\"a\""}}, changed},
  };
  for (const Case& one : cases) {
    auto headers = one.is;
    headers.push_back({"content-range", "bytes 0-9/100"});
    EXPECT_THAT(Said(Response(206, headers), one.was), HasSubstr(one.said))
        << one.was.etag << one.was.last_modified;
  }
  // A size that is not told shows nothing, unless something else does.
  const HttpHeader unknown{"content-range", "bytes 0-9/*"};
  EXPECT_THAT(Said(Response(206, {unknown}), {"", "", 100}),
              HasSubstr(unproved));
  EXPECT_EQ(
      Said(Response(206, {unknown, {"etag", "\"a\""}}), {"\"a\"", "", 100}),
      same);
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
