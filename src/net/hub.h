// Files of a model hub: hf:// names, the cache of the hub's own library, and
// requests to the hub.

#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "haulway/open.h"
#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway::net {

// hf://[datasets/|spaces/]ORG/NAME[@REVISION][/PATH]. The revision is
// URL-encoded, e.g. refs%2Fpr%2F1.
struct HubName {
  std::string kind;  // "models", "datasets" or "spaces".
  std::string repository;
  std::string revision = "main";
  std::string path;  // Empty: the repository's checkpoint.
};
// Fails with kInvalidArgument for other text.
Result<HubName> ParseHubName(std::string_view uri);

// Returns the value of a variable, or an empty string if it is not set.
using Environment = std::function<std::string(std::string_view name)>;

// Returns the path of the file in the cache of the hub's library, or the path
// of the snapshot's folder if the name has no path; nullopt if it is not
// cached. Makes no request and writes nothing.
std::optional<std::string> FindInHubCache(const HubName& name,
                                          const Environment& environment,
                                          std::string_view variant);

// Returns whether HF_HUB_OFFLINE forbids requests.
bool IsHubOffline(const Environment& environment);

// Opens the file from HF_ENDPOINT. The token is that of `options`, else
// HF_TOKEN or the token that the library stores. Neighbours come from the same
// commit. Fails with kNotFound if HF_HUB_OFFLINE forbids requests, and as
// OpenUrl() does.
Result<std::shared_ptr<const ByteSource>> OpenHubFile(
    const HubName& name, const Environment& environment,
    const RemoteOptions& options, std::string_view variant);

}  // namespace haulway::net
