#include <fmt/format.h>

#include <utility>

#include "base/no_memory.h"
#include "haulway/open.h"
#include "net/http_source.h"
#include "s3/digests.h"
#include "s3/s3_client.h"

namespace haulway {

namespace {

using s3::ObjectName;
using s3::S3Client;

net::HttpTarget TargetOf(const std::shared_ptr<S3Client>& client,
                         const ObjectName& name) {
  s3::Pairs query;
  if (!name.version.empty()) query = {{"versionId", name.version}};
  net::HttpRequest request =
      client->Request("GET", name.bucket, name.key, std::move(query),
                      std::string(s3::kEmptyPayload));
  client->AddObjectHeaders(&request);
  request.headers.push_back({"x-amz-checksum-mode", "ENABLED"});
  net::HttpTarget target;
  target.url = std::move(request.url);
  target.name = name.Shown();
  target.headers = std::move(request.headers);
  target.prepare = std::move(request.prepare);
  target.judge = std::move(request.judge);
  target.check = s3::CheckChecksums;
  target.neighbour = [client,
                      name](std::string_view path) -> Result<net::HttpTarget> {
    ObjectName beside{name.bucket, name.key, {}};
    beside.key.resize(name.key.rfind('/') + 1);
    beside.key += path;
    return TargetOf(client, beside);
  };
  return target;
}

}  // namespace

Result<std::shared_ptr<const ByteSource>> OpenS3Source(
    std::string_view uri, const S3Options& options,
    const RemoteOptions& remote) {
  using Source = std::shared_ptr<const ByteSource>;
  return OrNoMemory([&]() -> Result<Source> {
    HAULWAY_ASSIGN(const ObjectName name, s3::ParseObjectName(uri));
    if (name.key.empty()) {
      return Status(Code::kInvalidArgument,
                    "an s3 name has no key: expected s3://BUCKET/KEY");
    }
    HAULWAY_ASSIGN(const auto client, S3Client::Make(options, remote));
    return net::OpenHttpSource(client->http(), TargetOf(client, name));
  });
}

}  // namespace haulway
