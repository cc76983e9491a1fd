// Files of a model hub: hf:// names, what the hub's own library has kept of
// them, and where to ask for them.

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

// hf://[datasets/|spaces/]ORG/NAME[@REVISION][/PATH]; a revision is written as
// in a URL, so that refs%2Fpr%2F1 is one.
struct HubName {
  std::string kind;  // "models", "datasets" or "spaces".
  std::string repository;
  std::string revision = "main";
  std::string path;  // Empty: the repository's checkpoint.
};
// Fails with kInvalidArgument for what is no such name.
Result<HubName> ParseHubName(std::string_view uri);

// The value of a variable, empty if it is not set.
using Environment = std::function<std::string(std::string_view name)>;

// What the hub's library keeps of the name, as a path of a file, or of the
// snapshot's folder for an empty path; nullopt if that is not there. Nothing
// is asked of a server and nothing is written.
std::optional<std::string> FindInHubCache(const HubName& name,
                                          const Environment& environment);

// Asks HF_ENDPOINT for the file, as HF_TOKEN or the token that the library
// keeps says, unless `options` have one; files beside it come from the same
// commit. Fails with kNotFound where HF_HUB_OFFLINE forbids to ask, and as
// OpenUrl() does.
Result<std::shared_ptr<const ByteSource>> OpenHubFile(
    const HubName& name, const Environment& environment,
    const RemoteOptions& options);

}  // namespace haulway::net
