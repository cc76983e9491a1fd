// Tests uploads and reads against our own store, which fails on demand.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <fstream>
#include <map>
#include <mutex>
#include <thread>

#include "haulway/open.h"
#include "haulway/options.h"
#include "s3/part_plan.h"
#include "s3/xml.h"
#include "testing/scripted_server.h"

namespace haulway::s3 {
namespace {

using std::chrono::milliseconds;
using test::ScriptedServer;
using test::ServedRequest;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr std::string_view kSecret = "wJalrXUtnFEMIsecret";

// A store of one object that records its requests. `fail` may respond instead
// of the store; it returns whether it did.
class FakeStore {
 public:
  using Hook = std::function<bool(ServedRequest&, std::string_view what)>;

  explicit FakeStore(Hook fail = nullptr)
      : fail_(std::move(fail)),
        server_([this](ServedRequest& request) { Serve(request); }) {}

  S3Options Options() const {
    S3Options options;
    options.access_key = "AKIDEXAMPLE";
    options.secret_key = kSecret;
    options.endpoint = fmt::format("http://127.0.0.1:{}", server_.port());
    options.environment = [](std::string_view) { return std::string(); };
    return options;
  }
  std::optional<std::string> object() const {
    const std::lock_guard lock(mutex_);
    return object_;
  }
  bool has_upload() const {
    const std::lock_guard lock(mutex_);
    return is_open_;
  }
  void Remove() {
    const std::lock_guard lock(mutex_);
    object_.reset();
  }
  int count(std::string_view what) const {
    const std::lock_guard lock(mutex_);
    const auto found = counts_.find(what);
    return found == counts_.end() ? 0 : found->second;
  }
  std::vector<std::string> requests() const { return server_.requests(); }

  // Returns "create", "part 3", "complete", "abort", "put", "head", "get" or
  // "list".
  static std::string What(ServedRequest& request) {
    const std::string line = request.head().substr(0, request.head().find(' '));
    const std::string target = request.target();
    const size_t part = target.find("partNumber=");
    if (part != target.npos) {
      return "part " +
             target.substr(part + 11, target.find('&', part) - part - 11);
    }
    if (target.find("uploads=") != target.npos) {
      return line == "POST" ? "create" : "list";
    }
    if (target.find("uploadId=") != target.npos) {
      if (line == "POST") return "complete";
      return line == "DELETE" ? "abort" : "parts";
    }
    if (line == "HEAD") return "head";
    return line == "PUT" ? "put" : "get";
  }

  static void Answer(ServedRequest& request, std::string_view status,
                     std::string_view headers = "",
                     std::string_view body = "") {
    request.Send(fmt::format("HTTP/1.1 {}\r\nContent-Length: {}\r\n{}\r\n{}",
                             status, body.size(), headers, body));
  }

  void Put(ServedRequest& request, const std::string& body) {
    const std::lock_guard lock(mutex_);
    object_ = body;
    object_mark_ = request.Header("x-amz-meta-haulway-upload");
  }

  void Finish() {
    const std::lock_guard lock(mutex_);
    std::string whole;
    for (const auto& [number, bytes] : parts_) whole += bytes;
    object_ = whole;
    object_mark_ = mark_;
    is_open_ = false;
  }

 private:
  void Serve(ServedRequest& request) {
    const std::string body = request.ReadBody();
    const std::string what = What(request);
    {
      const std::lock_guard lock(mutex_);
      ++counts_[what];
      if (what.starts_with("part ")) ++counts_["part"];
      last_body_ = body;
    }
    if (fail_ != nullptr && fail_(request, what)) return;
    const std::lock_guard lock(mutex_);
    if (what == "create") {
      is_open_ = true;
      parts_.clear();
      mark_ = request.Header("x-amz-meta-haulway-upload");
      Answer(request, "200 OK", "",
             "<InitiateMultipartUploadResult xmlns=\"x\"><UploadId>u/1+</"
             "UploadId></InitiateMultipartUploadResult>");
    } else if (what.starts_with("part ")) {
      const int number = std::stoi(what.substr(5));
      parts_[number] = body;
      Answer(request, "200 OK", fmt::format("ETag: \"e{}\"\r\n", number));
    } else if (what == "complete") {
      if (!is_open_) {
        Answer(request, "404 Not Found", "",
               "<Error><Code>NoSuchUpload</Code></Error>");
        return;
      }
      Finish();
      Answer(request, "200 OK", "",
             "\n <CompleteMultipartUploadResult><ETag>x</ETag>"
             "</CompleteMultipartUploadResult>");
    } else if (what == "abort") {
      is_open_ = false;
      Answer(request, "204 No Content");
    } else if (what == "parts") {
      Answer(request, is_open_ ? "200 OK" : "404 Not Found");
    } else if (what == "put") {
      Put(request, body);
      Answer(request, "200 OK", "ETag: \"p\"\r\n");
    } else if (what == "list") {
      Answer(request, "200 OK", "",
             "<ListMultipartUploadsResult><Upload><Key>k</Key><UploadId>1</"
             "UploadId></Upload><Upload><Key>k2</Key><UploadId>2</UploadId>"
             "</Upload></ListMultipartUploadsResult>");
    } else if (!object_.has_value()) {
      Answer(request, "404 Not Found");
    } else if (what == "head") {
      request.Send(
          fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n"
                      "x-amz-meta-haulway-upload: {}\r\n\r\n",
                      object_->size(), object_mark_));
    } else {
      request.SendRange(*object_, "ETag: \"a\"\r\n");
    }
  }

  const Hook fail_;
  // Recursive: `fail` calls methods that Serve() also calls with the lock held.
  mutable std::recursive_mutex mutex_;
  std::map<std::string, int, std::less<>> counts_;
  std::map<int, std::string> parts_;
  std::string mark_, object_mark_, last_body_;
  std::optional<std::string> object_;
  bool is_open_ = false;
  ScriptedServer server_;
};

RemoteOptions Quick() {
  RemoteOptions remote;
  remote.first_wait = milliseconds(1);
  remote.longest_wait = milliseconds(20);
  remote.stall_timeout = milliseconds(2000);
  remote.retries = 2;
  return remote;
}

std::string Pattern(size_t size) {
  std::string bytes(size, '\0');
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<char>(i * 31 + i / 4093);
  }
  return bytes;
}

// Writes in pieces that do not match the part size.
Status Upload(const FakeStore& store, const std::string& bytes,
              Existing existing = Existing::kUsual, bool knows_size = true,
              S3Options options = {}) {
  if (options.endpoint.empty()) options = store.Options();
  HAULWAY_ASSIGN(const auto sink, OpenS3Sink("s3://b/k", options,
                                             {.existing = existing}, Quick()));
  HAULWAY_TRY(
      sink->Begin(knows_size ? std::optional(bytes.size()) : std::nullopt)
          .status());
  const auto all = std::as_bytes(std::span(bytes));
  constexpr size_t kPiece = 3'000'001;
  for (size_t at = 0; at < all.size(); at += kPiece) {
    HAULWAY_TRY(
        sink->WriteAt(at, all.subspan(at, std::min(kPiece, all.size() - at))));
  }
  return sink->Commit(bytes.size());
}

TEST(S3Sink, PutsWhatIsSmallInOneRequest) {
  FakeStore store;
  ASSERT_TRUE(Upload(store, "abc").ok());
  EXPECT_EQ(store.object(), "abc");
  ASSERT_EQ(store.requests().size(), 1U);
  EXPECT_THAT(
      store.requests().front(),
      AllOf(StartsWith("PUT /b/k HTTP/1.1\r\n"),
            HasSubstr("Authorization: AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE"),
            HasSubstr("x-amz-content-sha256: ba7816bf"),
            Not(HasSubstr("checksum")), Not(HasSubstr(std::string(kSecret)))));
}

TEST(S3Sink, UploadsTheRestInParts) {
  for (const bool knows_size : {true, false}) {
    FakeStore store;
    const std::string bytes = Pattern(20'000'000);
    const Status status = Upload(store, bytes, Existing::kUsual, knows_size);
    ASSERT_TRUE(status.ok()) << status.message();
    EXPECT_TRUE(store.object() == bytes);
    EXPECT_EQ(store.count("part"), 3);
    EXPECT_EQ(store.count("complete"), 1);
    EXPECT_EQ(store.count("abort"), 0);
  }
}

TEST(S3Sink, MakesNothingVisibleBeforeCommit) {
  FakeStore store;
  {
    const auto sink = *OpenS3Sink("s3://b/k", store.Options(), {}, Quick());
    ASSERT_TRUE(sink->Begin(std::nullopt).ok());
    const std::string bytes = Pattern(18'000'000);
    ASSERT_TRUE(sink->WriteAt(0, std::as_bytes(std::span(bytes))).ok());
    EXPECT_FALSE(store.object().has_value());
  }
  EXPECT_FALSE(store.object().has_value());
  EXPECT_EQ(store.count("abort"), 1);
  EXPECT_FALSE(store.has_upload());
}

// Rule R50 of docs/remote-checklist.md.
TEST(S3Sink, EndsTheUploadIfAnyPartFails) {
  for (int k = 1; k <= 3; ++k) {
    FakeStore store([&](ServedRequest& request, std::string_view what) {
      if (what != fmt::format("part {}", k)) return false;
      FakeStore::Answer(request, "403 Forbidden", "",
                        "<Error><Code>AccessDenied</Code></Error>");
      return true;
    });
    const Status status = Upload(store, Pattern(20'000'000));
    EXPECT_EQ(status.code(), Code::kPermissionDenied);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(fmt::format("part {}", k)));
    EXPECT_FALSE(store.object().has_value());
    EXPECT_EQ(store.count("abort"), 1);
  }
}

TEST(S3Sink, SendsAPartAgainThatWasLost) {
  std::atomic<int> failures = 0;
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "part 2" || ++failures > 2) return false;
    if (failures == 1) {
      FakeStore::Answer(request, "503 Slow Down", "",
                        "<Error><Code>SlowDown</Code></Error>");
    } else {
      request.Reset();
    }
    return true;
  });
  const std::string bytes = Pattern(20'000'000);
  const Status status = Upload(store, bytes);
  ASSERT_TRUE(status.ok()) << status.message();
  EXPECT_TRUE(store.object() == bytes);
}

// Rule R51 of docs/remote-checklist.md.
TEST(S3Sink, TakesAnErrorAfter200ForOne) {
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "complete") return false;
    FakeStore::Answer(request, "200 OK", "",
                      "  \n<Error><Code>InvalidPart</Code></Error>");
    return true;
  });
  const Status status = Upload(store, Pattern(10'000'000));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'InvalidPart'"));
  EXPECT_EQ(store.count("abort"), 1);
  EXPECT_FALSE(store.object().has_value());
}

// An error that may be temporary: the request is repeated.
TEST(S3Sink, TriesAgainAfterA200ThatTurnedIntoAnInternalError) {
  std::atomic<int> tries = 0;
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "complete" || ++tries > 2) return false;
    FakeStore::Answer(request, "200 OK", "",
                      "<?xml version=\"1.0\"?>\n"
                      "<Error><Code>InternalError</Code></Error>");
    return true;
  });
  const std::string bytes = Pattern(10'000'000);
  const Status status = Upload(store, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(store.count("complete"), 3);
  EXPECT_EQ(store.count("abort"), 0);
  EXPECT_TRUE(store.object() == bytes);
}

// Rule R52 of docs/remote-checklist.md.
TEST(S3Sink, FindsOutWhatALostAnswerWas) {
  FakeStore* self = nullptr;
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "complete") return false;
    if (self->has_upload()) self->Finish();
    request.Reset();
    return true;
  });
  self = &store;
  const std::string bytes = Pattern(10'000'000);
  const Status status = Upload(store, bytes);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(store.count("abort"), 0);
  EXPECT_TRUE(store.object() == bytes);
}

// The sink recognises its own object although the store says that an object
// exists.
TEST(S3Sink, KnowsItsOwnObjectWhereItRefusesOthers) {
  FakeStore* self = nullptr;
  std::atomic<int> tries = 0;
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "complete" && what != "put") return false;
    if (++tries > 1) {
      FakeStore::Answer(request, "412 Precondition Failed");
      return true;
    }
    if (what == "put") {
      self->Put(request, std::string("small"));
    } else {
      self->Finish();
    }
    request.Reset();
    return true;
  });
  self = &store;
  for (const std::string& bytes : {std::string("small"), Pattern(10'000'000)}) {
    tries = 0;
    store.Remove();
    const Status status = Upload(store, bytes, Existing::kRefuse);
    EXPECT_TRUE(status.ok()) << status.message();
    EXPECT_EQ(tries, 2);
    EXPECT_TRUE(store.object() == bytes);
  }
  EXPECT_EQ(store.count("abort"), 0);
}

TEST(S3Sink, EndsTheUploadWhenItIsCancelled) {
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (!what.starts_with("part ")) return false;
    request.Stall();
    return true;
  });
  RemoteOptions remote = Quick();
  remote.connections = 1;
  remote.stall_timeout = std::chrono::seconds(60);
  const auto sink = *OpenS3Sink("s3://b/k", store.Options(), {}, remote);
  ASSERT_TRUE(sink->Begin(std::nullopt).ok());
  const std::string bytes = Pattern(30'000'000);
  std::atomic<bool> stop = false;
  const CancelScope scope(&stop);
  std::thread other([&] {
    while (store.count("part") == 0) std::this_thread::yield();
    stop = true;
  });
  const Status status = sink->WriteAt(0, std::as_bytes(std::span(bytes)));
  other.join();
  EXPECT_EQ(status.code(), Code::kCancelled);
  EXPECT_EQ(store.count("abort"), 1);
  EXPECT_FALSE(store.has_upload());
}

TEST(S3Sink, TellsHowToEndWhatItCouldNot) {
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "part 1" && what != "abort") return false;
    FakeStore::Answer(request, "403 Forbidden");
    return true;
  });
  const Status status = Upload(store, Pattern(10'000'000));
  EXPECT_THAT(
      std::string(status.message()),
      AllOf(HasSubstr("upload u/1+"), HasSubstr("haulway put --abort s3://b/k"),
            Not(HasSubstr(std::string(kSecret)))));
}

// Rule R54 of docs/remote-checklist.md.
TEST(S3Sink, RefusesWhatIsThereIfToldTo) {
  FakeStore store;
  ASSERT_TRUE(Upload(store, "old", Existing::kRefuse).ok());
  EXPECT_THAT(store.requests(), Contains(HasSubstr("If-None-Match: *")));
  const Status status = Upload(store, "new", Existing::kRefuse);
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_EQ(store.object(), "old");
  ASSERT_TRUE(Upload(store, "new").ok());
  EXPECT_EQ(store.object(), "new");
}

TEST(S3Sink, AddsChecksumsWhereTheyAreWanted) {
  FakeStore store;
  S3Options options = store.Options();
  options.checksums = true;
  ASSERT_TRUE(Upload(store, "123456789", Existing::kUsual, true, options).ok());
  EXPECT_THAT(store.requests().front(),
              HasSubstr("x-amz-checksum-crc32: y/Q5Jg==\r\n"));
}

TEST(S3Sink, EndsUploadsThatWereLeft) {
  FakeStore store;
  const auto one = AbortS3Uploads("s3://b/k", store.Options(), Quick());
  ASSERT_TRUE(one.ok()) << one.status().message();
  EXPECT_EQ(*one, 1U);
  const auto all = AbortS3Uploads("s3://b/", store.Options(), Quick());
  ASSERT_TRUE(all.ok());
  EXPECT_EQ(*all, 2U);
}

TEST(S3Sink, EndsTheOtherUploadsIfOneHasEnded) {
  std::atomic<bool> is_first = true;
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "abort" || !is_first.exchange(false)) return false;
    FakeStore::Answer(request, "404 Not Found");
    return true;
  });
  const auto ended = AbortS3Uploads("s3://b/", store.Options(), Quick());
  ASSERT_TRUE(ended.ok()) << ended.status().message();
  EXPECT_EQ(*ended, 1U);
}

// Rule R53 of docs/remote-checklist.md.
TEST(PartPlan, NeedsAtMostTenThousandParts) {
  for (const uint64_t size :
       {uint64_t{1}, 8 * kMiB, 78 * kGiB, 79 * kGiB, 5 * 1024 * kGiB}) {
    const uint64_t part = PartBytes(size, 0);
    EXPECT_GE(part, kLeastPart);
    EXPECT_LE((size + part - 1) / part, kMostParts) << size;
  }
  uint64_t reached = 0;
  for (uint64_t i = 0; i < kMostParts; ++i) {
    reached += PartBytes(std::nullopt, i);
  }
  EXPECT_GE(reached, 5 * 1024 * kGiB);
}

TEST(S3Source, ReadsWithSignedRequests) {
  FakeStore store;
  const std::string bytes = Pattern(3'000'000);
  ASSERT_TRUE(Upload(store, bytes).ok());
  const auto source = OpenS3Source("s3://b/k", store.Options(), Quick());
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->name(), "s3://b/k");
  EXPECT_EQ((*source)->size(), bytes.size());
  std::string part(100'000, '\0');
  ASSERT_TRUE((*source)
                  ->ReadAt(1'500'000, std::as_writable_bytes(std::span(part)))
                  .ok());
  EXPECT_TRUE(part == bytes.substr(1'500'000, part.size()));
  EXPECT_THAT(store.requests().back(),
              AllOf(HasSubstr("If-Match: \"a\""),
                    HasSubstr("Authorization: AWS4-HMAC-SHA256")));
  EXPECT_EQ(store.count("head"), 0);
}

// Rules R46 and R47 of docs/remote-checklist.md.
TEST(S3Source, FollowsTheStoreToItsRegionAndClock) {
  std::atomic<int> asked = 0;
  FakeStore store([&](ServedRequest& request, std::string_view what) {
    if (what != "get") return false;
    const std::string login = request.Header("authorization");
    if (login.find("/eu-west-7/s3/") == login.npos) {
      ++asked;
      FakeStore::Answer(request, "301 Moved Permanently",
                        "x-amz-bucket-region: eu-west-7\r\n");
      return true;
    }
    if (!request.Header("x-amz-date").starts_with("2031")) {
      ++asked;
      FakeStore::Answer(request, "403 Forbidden",
                        "Date: Sat, 22 Nov 2031 12:00:00 GMT\r\n",
                        "<Error><Code>RequestTimeTooSkewed</Code></Error>");
      return true;
    }
    return false;
  });
  ASSERT_TRUE(Upload(store, "abc").ok());
  RemoteOptions remote = Quick();
  remote.retries = 0;  // Corrections are not retries.
  const auto source = OpenS3Source("s3://b/k", store.Options(), remote);
  ASSERT_TRUE(source.ok()) << source.status().message();
  EXPECT_EQ((*source)->size(), 3U);
  EXPECT_EQ(asked, 2);
  // The region is remembered; the clock difference is not.
  ASSERT_TRUE(OpenS3Source("s3://b/k", store.Options(), Quick()).ok());
  EXPECT_EQ(asked, 3);
}

TEST(S3Source, RefusesNamesThatAreNone) {
  for (const char* uri : {"s3://", "s3:///k", "s3://b", "s3://b/", "s3://b c/k",
                          "s3://arn:aws:s3:us-east-1:1:accesspoint/x/k",
                          "http://b/k", "xxb/k", ""}) {
    const FakeStore store;
    EXPECT_FALSE(OpenS3Source(uri, store.Options(), Quick()).ok()) << uri;
    EXPECT_TRUE(store.requests().empty()) << uri;
  }
}

TEST(S3Source, SendsWhatObjectsAskFor) {
  FakeStore store;
  ASSERT_TRUE(Upload(store, "abc").ok());
  S3Options options = store.Options();
  options.requester_pays = true;
  ASSERT_TRUE(OpenS3Source("s3://b/k?versionId=v/1", options, Quick()).ok());
  EXPECT_THAT(store.requests().back(),
              AllOf(StartsWith("GET /b/k?versionId=v%2F1 "),
                    HasSubstr("x-amz-request-payer: requester"),
                    HasSubstr("x-amz-date;x-amz-request-payer")));
  options.customer_key = std::string(32, 'k');
  EXPECT_THAT(std::string(OpenS3Source("s3://b/k", options).status().message()),
              HasSubstr("https only"));
}

TEST(Xml, FindsElementsAndDecodesText) {
  EXPECT_EQ(XmlText("<a><Key x=\"1\">a&amp;&#x2F;&#233;</Key></a>", "Key"),
            "a&/\xC3\xA9");
  EXPECT_EQ(XmlElements("<K>1</K><K/><K>3</K>", "K").size(), 3U);
  EXPECT_FALSE(XmlElement("<Keys>1</Keys><Key", "Key").has_value());
  EXPECT_EQ(XmlEscape("<\"&>"), "&lt;&quot;&amp;&gt;");
}

}  // namespace
}  // namespace haulway::s3
