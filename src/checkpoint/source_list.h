// ListSources() with a name.

#pragma once

#include <memory>
#include <string>
#include <vector>

#include "haulway/source.h"
#include "haulway/status.h"

namespace haulway {

// As ListSources(). Messages call the list `name`. Requires: `sources` has no
// null.
Result<std::shared_ptr<const ByteSource>> ListSourcesAs(
    std::string name, std::vector<std::shared_ptr<const ByteSource>> sources);

}  // namespace haulway
