#include "s3/s3_list.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "base/ascii.h"
#include "base/no_memory.h"
#include "base/text.h"
#include "s3/s3_client.h"
#include "s3/xml.h"

namespace haulway::s3 {

namespace {

constexpr std::string_view kVersion = "?versionId=";
// A thousand keys of a kilobyte, each byte of which may be written as three.
constexpr uint64_t kMostPageBytes = uint64_t{16} << 20;
constexpr size_t kMostKeys = 1'000'000;
// Stores may answer with less than a thousand keys, or none.
constexpr size_t kMostPages = 10'000;

// What "encoding-type=url" asks for: a blank may be written '+'.
std::string DecodeKey(std::string text) {
  std::ranges::replace(text, '+', ' ');
  return PercentDecode(text);
}

std::string NameOf(const ObjectName& folder, const std::string& key) {
  std::string name = fmt::format("s3://{}/{}", folder.bucket, key);
  // Else a part of the key would be taken for a version.
  if (key.find(kVersion) != key.npos) name += kVersion;
  return name;
}

}  // namespace

bool IsFolderName(std::string_view uri) {
  const auto name = ParseObjectName(uri);
  return name.ok() && name->version.empty() &&
         (name->key.empty() || name->key.ends_with('/')) &&
         !uri.ends_with(kVersion);
}

Result<std::vector<std::string>> ListObjects(std::string_view uri,
                                             bool recursive,
                                             const S3Options& options,
                                             const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Result<std::vector<std::string>> {
    HAULWAY_ASSIGN(const ObjectName folder, ParseObjectName(uri));
    HAULWAY_ASSIGN(const auto client, S3Client::Make(options, remote));
    const auto fail = [&](Code code, std::string_view what) {
      return Status(code, fmt::format("the list of keys {}", what))
          .Of(folder.Shown());
    };
    std::vector<std::string> names;
    std::set<std::string> seen;
    std::string token;
    while (true) {
      Pairs query{{"encoding-type", "url"}, {"list-type", "2"}};
      if (!folder.key.empty()) query.emplace_back("prefix", folder.key);
      if (!recursive) query.emplace_back("delimiter", "/");
      if (!token.empty()) query.emplace_back("continuation-token", token);
      net::HttpRequest request =
          client->Request("GET", folder.bucket, "", std::move(query),
                          std::string(kEmptyPayload));
      request.max_body = kMostPageBytes;
      HAULWAY_ASSIGN(const net::HttpResponse response, client->Send(request));
      const auto page = XmlElement(response.body, "ListBucketResult");
      if (!page.has_value()) return fail(Code::kCorrupt, "has no end");
      // Some stores do not know of it.
      const bool is_encoded = XmlText(*page, "EncodingType") == "url";
      for (const std::string_view one : XmlElements(*page, "Contents")) {
        std::string key = XmlText(one, "Key");
        if (is_encoded) key = DecodeKey(std::move(key));
        if (!key.starts_with(folder.key)) {
          return fail(Code::kCorrupt,
                      fmt::format("has {}, which is not below it", Quote(key)));
        }
        if (key.ends_with('/') || key == folder.key) continue;
        if (names.size() == kMostKeys) {
          return fail(
              Code::kLimit,
              fmt::format("is too long: expected at most {} keys", kMostKeys));
        }
        names.push_back(NameOf(folder, key));
      }
      if (XmlText(*page, "IsTruncated") != "true") break;
      token = XmlText(*page, "NextContinuationToken");
      if (token.empty() || !seen.insert(token).second ||
          seen.size() == kMostPages) {
        return fail(Code::kCorrupt,
                    "goes on without end: expected another continuation token");
      }
    }
    std::ranges::sort(names);
    const auto twice = std::ranges::unique(names);
    names.erase(twice.begin(), twice.end());
    return names;
  });
}

}  // namespace haulway::s3
