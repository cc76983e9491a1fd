#include "net/http_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "haulway/options.h"
#include "testing/scripted_server.h"
#include "testing/source_suite.h"

namespace haulway::net {
namespace {

using test::ScriptedServer;
using test::ServedRequest;
using test::SourceCase;
using test::SourceSuite;
using ::testing::HasSubstr;

std::string Whole(const std::string& bytes) {
  return "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: " +
         std::to_string(bytes.size()) + "\r\n\r\n" + bytes;
}

// The server lives until the end of the program, as its source may.
std::shared_ptr<const ByteSource> Served(const std::string& bytes,
                                         bool ranges) {
  static std::vector<std::unique_ptr<ScriptedServer>> servers;
  servers.push_back(
      std::make_unique<ScriptedServer>([bytes, ranges](ServedRequest& request) {
        if (ranges) return request.SendRange(bytes, "ETag: \"v\"\r\n");
        request.Send(Whole(bytes));
        request.Close();
      }));
  const auto source = OpenUrl(servers.back()->Url(), RemoteOptions());
  EXPECT_TRUE(source.ok()) << source.status().message();
  return *source;
}

INSTANTIATE_TEST_SUITE_P(
    Net, SourceSuite,
    ::testing::Values(SourceCase{"Http",
                                 [](const std::string& bytes) {
                                   return Served(bytes, true);
                                 },
                                 true},
                      SourceCase{"HttpWithoutRanges",
                                 [](const std::string& bytes) {
                                   return Served(bytes, false);
                                 },
                                 true}),
    test::NameOf);

std::string Bytes(size_t size) {
  std::string bytes(size, '\0');
  uint64_t state = 1;
  for (char& byte : bytes) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    byte = static_cast<char>(state >> 56);
  }
  return bytes;
}

std::string Read(const ByteSource& source, uint64_t offset, size_t length) {
  std::string out(length, '?');
  const Status status =
      source.ReadAt(offset, std::as_writable_bytes(std::span(out)));
  return status.ok() ? out : std::string(status.message());
}

TEST(HttpSource, TakesTheEndAtOnceAndTheBeginningFurther) {
  const std::string bytes = Bytes(24 << 20);
  ScriptedServer server(
      [&](ServedRequest& request) { request.SendRange(bytes); });
  const auto source = *OpenUrl(server.Url(), RemoteOptions());
  EXPECT_EQ(source->size(), bytes.size());
  EXPECT_FALSE(source->View(0, 1).has_value());
  EXPECT_EQ(Read(*source, 100, 1000), bytes.substr(100, 1000));
  EXPECT_EQ(server.requests().size(), 1U);
  // Reads near the end, piece by piece.
  for (const size_t back : {100, 5000, 900'000, 1 << 20}) {
    EXPECT_EQ(Read(*source, bytes.size() - back, 100),
              bytes.substr(bytes.size() - back, 100));
  }
  EXPECT_EQ(server.requests().size(), 2U);
  EXPECT_EQ(source->remote_stats()->received_bytes, (512 << 10) + (1 << 20))
      << "no more than a directory needs";
  // Reads that are partly kept and partly not.
  EXPECT_EQ(Read(*source, 1000, 600'000), bytes.substr(1000, 600'000));
  EXPECT_EQ(Read(*source, 700'000, 600'000), bytes.substr(700'000, 600'000));
  EXPECT_EQ(server.requests().size(), 3U);
  EXPECT_EQ(Read(*source, 0, bytes.size()), bytes);
  EXPECT_EQ(source->remote_stats()->requests, server.requests().size());
}

TEST(HttpSource, JoinsSmallReadsAndCutsLargeOnes) {
  const std::string bytes = Bytes(40 << 20);
  ScriptedServer server(
      [&](ServedRequest& request) { request.SendRange(bytes); });
  const auto source = *OpenUrl(server.Url(), RemoteOptions());
  std::vector<std::string> out(1000, std::string(64, '?'));
  std::vector<ReadRequest> requests;
  for (size_t i = 0; i < out.size(); ++i) {
    requests.push_back(
        {(2 << 20) + i * 10'000, std::as_writable_bytes(std::span(out[i]))});
  }
  ASSERT_TRUE(source->ReadMany(requests).ok());
  for (size_t i = 0; i < out.size(); ++i) {
    EXPECT_EQ(out[i], bytes.substr((2 << 20) + i * 10'000, 64));
  }
  EXPECT_LE(server.requests().size(), 4U);
  const size_t before = server.requests().size();
  EXPECT_EQ(Read(*source, 1 << 20, 34 << 20), bytes.substr(1 << 20, 34 << 20));
  EXPECT_GE(server.requests().size(), before + 4);
}

TEST(HttpSource, SeesThatTheObjectChanged) {
  std::string bytes = Bytes(4 << 20);
  std::string tag = "\"a\"";
  ScriptedServer server([&](ServedRequest& request) {
    request.SendRange(bytes, "ETag: " + tag + "\r\n");
  });
  const auto source = *OpenUrl(server.Url(), RemoteOptions());
  EXPECT_EQ(source->remote_stats()->version, "\"a\"");
  tag = "\"b\"";
  EXPECT_THAT(Read(*source, 2 << 20, 10), HasSubstr("the object changed"));
}

// Rule R13 of docs/remote-checklist.md.
TEST(HttpSource, SaysWhatCannotBeRecognised) {
  ScriptedServer server(
      [&](ServedRequest& request) { request.SendRange("0123"); });
  const auto source = *OpenUrl(server.Url(), RemoteOptions());
  EXPECT_TRUE(source->remote_stats()->unvalidated);
}

TEST(HttpSource, TakesNoMoreThanFitsIntoMemory) {
  const std::string bytes = Bytes(100'000);
  ScriptedServer server([&](ServedRequest& request) {
    request.Send(Whole(bytes));
    request.Close();
  });
  for (const uint64_t most : {uint64_t{99'999}, uint64_t{100'000}}) {
    HttpTarget target;
    target.url = server.Url();
    target.most_whole_bytes = most;
    const auto source =
        OpenHttpSource(*HttpClient::Make(RemoteOptions()), target);
    EXPECT_EQ(source.ok(), most == bytes.size());
    if (source.ok()) continue;
    EXPECT_EQ(source.status().code(), Code::kLimit);
    EXPECT_THAT(std::string(source.status().message()),
                HasSubstr("expected at most 99999 bytes"));
  }
  EXPECT_EQ(server.requests().size(), 2U);
}

// A part has come before the server sends the whole.
TEST(HttpSource, TakesTheWholeAfterAPart) {
  const std::string bytes = Bytes(700'000);
  const std::string tag = "ETag: \"v\"\r\n";
  ScriptedServer server([&](ServedRequest& request) {
    if (request.number() == 0) {
      request.Send("HTTP/1.1 206 X\r\nContent-Length: 524288\r\n" + tag +
                   "Content-Range: bytes 0-524287/700000\r\n\r\n" +
                   bytes.substr(0, 9));
      return request.Reset();
    }
    request.Send("HTTP/1.1 200 X\r\nContent-Length: 700000\r\n" + tag + "\r\n" +
                 bytes);
  });
  RemoteOptions options;
  options.first_wait = std::chrono::milliseconds(1);
  const auto source = OpenUrl(server.Url(), options);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ(Read(**source, 0, (*source)->size()), bytes);
}

// The status says that it is the whole, and no header says otherwise.
TEST(HttpSource, AsksAgainForAWholeAsLongAsTheRange) {
  const std::string bytes = Bytes(700'000);
  ScriptedServer server([&](ServedRequest& request) {
    const bool is_part = !request.Header("range").empty();
    request.Send(Whole(bytes.substr(0, is_part ? 512 << 10 : bytes.size())));
    request.Close();
  });
  const auto source = *OpenUrl(server.Url(), RemoteOptions());
  EXPECT_EQ(Read(*source, 0, source->size()), bytes);
  EXPECT_EQ(server.requests().size(), 2U);
}

TEST(HttpSource, RefusesABodyThatMayBeCut) {
  ScriptedServer server([&](ServedRequest& request) {
    request.Send("HTTP/1.0 200 OK\r\n\r\n" + Bytes(100));
    request.Close();
  });
  const auto source = OpenUrl(server.Url(), RemoteOptions());
  EXPECT_EQ(source.status().code(), Code::kUnsupported);
  EXPECT_THAT(std::string(source.status().message()),
              HasSubstr("does not say how long the object is"));
}

TEST(HttpSource, OpensWhatIsBesideIt) {
  ScriptedServer server(
      [&](ServedRequest& request) { request.SendRange(request.target()); });
  const auto source =
      *OpenUrl(server.Url("/a/index.json?token=t"), RemoteOptions());
  const auto beside = *source->OpenNeighbour("b c/d.bin");
  EXPECT_EQ(Read(*beside, 0, beside->size()), "/a/b%20c/d.bin?token=t");
  EXPECT_EQ(beside->name(), server.Url("/a/b%20c/d.bin?..."));
  for (const char* name :
       {"", "/etc/passwd", "../x", "a/../../x", "http://elsewhere/x"}) {
    EXPECT_EQ(source->OpenNeighbour(name).status().code(),
              Code::kInvalidArgument)
        << name;
  }
}

TEST(HttpSource, IsCancelledByAScope) {
  ScriptedServer server([&](ServedRequest& request) { request.Stall(); });
  std::atomic<bool> stop = false;
  std::thread soon([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    stop = true;
  });
  const CancelScope scope(&stop);
  EXPECT_EQ(OpenUrl(server.Url(), RemoteOptions()).status().code(),
            Code::kCancelled);
  soon.join();
}

}  // namespace
}  // namespace haulway::net
