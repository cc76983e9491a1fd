// The index of a checkpoint, with the way to other versions of it.

#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "haulway/open.h"
#include "haulway/source.h"

namespace haulway {

// The index of a version of weights has this name.
inline constexpr std::string_view kVersionIndexName =
    "model.safetensors.index.json";

// Returns `index`, which was opened as `uri` with these options, as a source
// whose OpenBase() finds other versions. The base of the version in folder F is
// looked for beside F: in the folder whose name has the base's number, then in
// any whose index states that version; else it is `options.base`, if
// delta::CheckBase() accepts what that states.
std::shared_ptr<const ByteSource> MakeVersionSource(
    std::shared_ptr<const ByteSource> index, std::string_view uri,
    const SourceOptions& options);

// Returns the version that an opened checkpoint is, as its folder says: as
// `.weight_sync` states it for a folder to which versions are applied, else as
// the index states it, else as the folder is called, "weight_v000003". nullopt
// if nothing says it. Fails if what states it cannot be read.
Result<std::optional<std::string>> StatedVersion(const ByteSource& source);

}  // namespace haulway
