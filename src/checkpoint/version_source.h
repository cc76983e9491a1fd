// The index of a checkpoint, with the way to other versions of it.

#pragma once

#include <memory>
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
// any whose index states that version; else it is `options.base`.
std::shared_ptr<const ByteSource> MakeVersionSource(
    std::shared_ptr<const ByteSource> index, std::string_view uri,
    const SourceOptions& options);

}  // namespace haulway
