#include "s3/s3_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "s3/s3_client.h"
#include "s3/xml.h"

namespace haulway::s3 {

namespace {

constexpr std::string_view kVersion = "?versionId=";
// A thousand keys of 1 kB, each byte encoded as up to three.
constexpr uint64_t kMostPageBytes = uint64_t{16} << 20;
constexpr size_t kMostKeys = 1'000'000;
// Stores may return pages with fewer than a thousand keys, or with none.
constexpr int kMostEmptyPages = 10'000;

// Decodes a key sent with "encoding-type=url". A blank may be encoded as '+'.
std::string DecodeKey(std::string text) {
  std::ranges::replace(text, '+', ' ');
  return PercentDecode(text);
}

std::string NameOf(const ObjectName& folder, const std::string& key) {
  std::string name = fmt::format("s3://{}/{}", folder.bucket, key);
  // Otherwise a part of the key would be parsed as a version.
  if (key.find(kVersion) != key.npos) name += kVersion;
  return name;
}

// A list of keys, requested page by page.
class ObjectPages : public FolderPages {
 public:
  ObjectPages(ObjectName folder, bool recursive,
              std::shared_ptr<S3Client> client)
      : folder_(std::move(folder)),
        recursive_(recursive),
        client_(std::move(client)) {}

  Result<std::vector<std::string>> Next() override {
    return OrNoMemory([&]() -> Result<std::vector<std::string>> {
      HAULWAY_ASSIGN(std::vector<ListedObject> page, NextObjects());
      std::vector<std::string> names;
      for (ListedObject& object : page) names.push_back(std::move(object.name));
      return names;
    });
  }

  // As Next().
  Result<std::vector<ListedObject>> NextObjects() {
    std::vector<ListedObject> objects;
    for (int empty = 0; objects.empty() && !is_at_end_; ++empty) {
      if (empty == kMostEmptyPages) return EndsNowhere();
      HAULWAY_TRY(ReadPage(&objects));
    }
    return objects;
  }

 private:
  Status Fail(Code code, std::string_view what) const {
    return Status(code, fmt::format("the list of keys {}", what))
        .Of(folder_.Shown());
  }

  Status EndsNowhere() const {
    return Fail(Code::kCorrupt,
                "goes on without end: expected another continuation token");
  }

  Status ReadPage(std::vector<ListedObject>* objects) {
    Pairs query{{"encoding-type", "url"}, {"list-type", "2"}};
    if (!folder_.key.empty()) query.emplace_back("prefix", folder_.key);
    if (!recursive_) query.emplace_back("delimiter", "/");
    if (!token_.empty()) query.emplace_back("continuation-token", token_);
    net::HttpRequest request =
        client_->Request("GET", folder_.bucket, "", std::move(query),
                         std::string(kEmptyPayload));
    request.max_body = kMostPageBytes;
    HAULWAY_ASSIGN(const net::HttpResponse response, client_->Send(request));
    const auto page = XmlElement(response.body, "ListBucketResult");
    if (!page.has_value()) return Fail(Code::kCorrupt, "has no end");
    // Some stores do not support encoding-type.
    const bool is_encoded = XmlText(*page, "EncodingType") == "url";
    for (const std::string_view one : XmlElements(*page, "Contents")) {
      std::string key = XmlText(one, "Key");
      if (is_encoded) key = DecodeKey(std::move(key));
      if (!key.starts_with(folder_.key)) {
        return Fail(Code::kCorrupt,
                    fmt::format("has {}, which is not below it", Quote(key)));
      }
      if (key.ends_with('/') || key == folder_.key) continue;
      const std::string size = XmlText(one, "Size");
      uint64_t bytes = 0;
      std::from_chars(size.data(), size.data() + size.size(), bytes);
      objects->push_back({NameOf(folder_, key), bytes});
    }
    is_at_end_ = XmlText(*page, "IsTruncated") != "true";
    if (is_at_end_) return Status();
    token_ = XmlText(*page, "NextContinuationToken");
    if (token_.empty() || token_ == mark_) return EndsNowhere();
    // Cycle detection: the mark is kept for longer and longer, so a cycle
    // returns to it.
    if (++steps_ == steps_to_mark_) {
      mark_ = token_;
      steps_ = 0;
      steps_to_mark_ *= 2;
    }
    return Status();
  }

  const ObjectName folder_;
  const bool recursive_;
  const std::shared_ptr<S3Client> client_;
  std::string token_;
  bool is_at_end_ = false;
  std::string mark_;
  uint64_t steps_ = 0;
  uint64_t steps_to_mark_ = 1;
};

Result<std::unique_ptr<ObjectPages>> OpenPages(std::string_view uri,
                                               bool recursive,
                                               const S3Options& options,
                                               const RemoteOptions& remote) {
  HAULWAY_ASSIGN(ObjectName folder, ParseObjectName(uri));
  HAULWAY_ASSIGN(auto client, S3Client::Make(options, remote));
  return std::make_unique<ObjectPages>(std::move(folder), recursive,
                                       std::move(client));
}

}  // namespace

bool IsFolderName(std::string_view uri) {
  const auto name = ParseObjectName(uri);
  return name.ok() && name->version.empty() &&
         (name->key.empty() || name->key.ends_with('/')) &&
         !uri.ends_with(kVersion);
}

Result<std::unique_ptr<FolderPages>> OpenObjectPages(
    std::string_view uri, bool recursive, const S3Options& options,
    const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::unique_ptr<FolderPages>> {
    HAULWAY_ASSIGN(auto pages, OpenPages(uri, recursive, options, remote));
    return std::unique_ptr<FolderPages>(std::move(pages));
  });
}

Result<std::vector<ListedObject>> ListObjects(std::string_view uri,
                                              bool recursive,
                                              const S3Options& options,
                                              const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::vector<ListedObject>> {
    HAULWAY_ASSIGN(const auto pages,
                   OpenPages(uri, recursive, options, remote));
    std::vector<ListedObject> objects;
    while (true) {
      HAULWAY_ASSIGN(std::vector<ListedObject> page, pages->NextObjects());
      if (page.empty()) break;
      if (objects.size() + page.size() > kMostKeys) {
        return Status(Code::kLimit,
                      fmt::format("the list of keys is too long: expected at "
                                  "most {} keys",
                                  kMostKeys))
            .Of(ShownName(uri));
      }
      std::ranges::move(page, std::back_inserter(objects));
    }
    std::ranges::sort(objects, {}, &ListedObject::name);
    const auto twice = std::ranges::unique(objects, {}, &ListedObject::name);
    objects.erase(twice.begin(), twice.end());
    return objects;
  });
}

}  // namespace haulway::s3
