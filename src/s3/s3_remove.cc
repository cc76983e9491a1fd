#include "s3/s3_remove.h"

#include <algorithm>
#include <string>
#include <utility>

#include "base/no_memory.h"
#include "base/thread_pool.h"
#include "s3/s3_client.h"
#include "s3/xml.h"

namespace haulway::s3 {

Status RemoveObjects(std::span<const std::string> uris,
                     const S3Options& options, const RemoteOptions& remote) {
  return OrNoMemory([&]() -> Status {
    HAULWAY_ASSIGN(const auto client, S3Client::Make(options, remote));
    const int threads = std::max(1, remote.connections);
    return ParallelFor(uris.size(), threads, [&](uint64_t i) -> Status {
      HAULWAY_ASSIGN(const ObjectName name, ParseObjectName(uris[i]));
      if (name.key.empty()) {
        return Status(Code::kInvalidArgument,
                      "an object to remove has a key: expected "
                      "s3://BUCKET/KEY");
      }
      Status removed =
          client
              ->Send(client->Request("DELETE", name.bucket, name.key, {},
                                     std::string(kEmptyPayload)))
              .status();
      if (removed.ok() || removed.code() == Code::kNotFound) return Status();
      return std::move(removed).Of(name.Shown());
    });
  });
}

Result<uint64_t> AbortUploads(
    std::string_view uri, const S3Options& options, const RemoteOptions& remote,
    const std::function<bool(std::string_view key)>& wanted) {
  return OrNoMemory([&]() -> Result<uint64_t> {
    HAULWAY_ASSIGN(const ObjectName name, ParseObjectName(uri));
    HAULWAY_ASSIGN(const auto client, S3Client::Make(options, remote));
    const bool is_all = name.key.empty() || name.key.ends_with('/');
    uint64_t count = 0;
    std::string key_marker, id_marker;
    while (true) {
      Pairs query{
          {"max-uploads", "200"}, {"prefix", name.key}, {"uploads", ""}};
      if (!key_marker.empty()) {
        query.emplace_back("key-marker", key_marker);
        query.emplace_back("upload-id-marker", id_marker);
      }
      HAULWAY_ASSIGN(
          const auto page,
          client->Send(client->Request("GET", name.bucket, "", std::move(query),
                                       std::string(kEmptyPayload))));
      if (!XmlElement(page.body, "ListMultipartUploadsResult")) {
        return Status(Code::kCorrupt, "the list of uploads has no end")
            .Of(name.Shown());
      }
      for (const std::string_view one : XmlElements(page.body, "Upload")) {
        const std::string key = XmlText(one, "Key");
        if ((!is_all && key != name.key) || !wanted(key)) continue;
        Status ended =
            client
                ->Send(client->Request("DELETE", name.bucket, key,
                                       {{"uploadId", XmlText(one, "UploadId")}},
                                       std::string(kEmptyPayload)))
                .status();
        // It ended after it was listed.
        if (ended.code() == Code::kNotFound) continue;
        HAULWAY_TRY(std::move(ended));
        ++count;
      }
      if (XmlText(page.body, "IsTruncated") != "true") return count;
      std::string next_key = XmlText(page.body, "NextKeyMarker");
      std::string next_id = XmlText(page.body, "NextUploadIdMarker");
      if (next_key == key_marker && next_id == id_marker) return count;
      key_marker = std::move(next_key);
      id_marker = std::move(next_id);
    }
  });
}

}  // namespace haulway::s3
